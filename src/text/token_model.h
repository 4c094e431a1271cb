// The "model" of tokenizer.json: a vocabulary, and the encoding of a piece of text as tokens.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe_merge.h"
#include "text/json_cursor.h"

namespace hone {

/// Largest token id accepted from a file; limits the memory that a malicious vocabulary can allocate.
inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;

/// Hash for look-ups of token ids by string_view.
struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TokenHash, std::equal_to<>>;

/// Tokens and their ids.
class Vocabulary {
 public:
  void reserve(size_t tokens) { ids_.reserve(tokens); }
  /// Assigns the id to `token` and replaces an earlier id. Returns the other token with this id, or null.
  const std::string* add(std::string_view token, int32_t id);

  std::optional<int32_t> id_of(std::string_view token) const;
  /// The token's text as in the file, or nullptr when no token has this id.
  const std::string* token_of(int32_t id) const {
    return id >= 0 && size_t(id) < tokens_.size() ? tokens_[size_t(id)] : nullptr;
  }
  /// Number of entries.
  size_t size() const { return size_; }
  /// Largest id, -1 when there is none.
  int32_t max_id() const { return int32_t(tokens_.size()) - 1; }

 private:
  TokenIds ids_;
  std::vector<const std::string*> tokens_;  // by id; keys of ids_ (stable), null for an id without a token
  size_t size_ = 0;
};

/// The id of the token "<0xNN>" of each byte; -1: none.
std::array<int32_t, 256> byte_fallback_ids(const Vocabulary& vocabulary);

/// The best path to a byte of a piece, in the front-to-back search for the most probable tokens.
struct UnigramStep {
  double score = 0;
  int32_t id = -1;  // the token that ends here; -1: none
  uint32_t begin = 0;
};

/// Memory that encoding reuses for all pieces and texts; not thread-safe.
struct EncodeScratch {
  PieceCache cache;
  std::vector<Symbol> symbols;      // the symbols of one piece of a text
  std::vector<Symbol> new_symbols;  // the symbols of a piece that is not in the cache
  MergeScratch merge;
  std::vector<UnigramStep> steps;

  /// Frees what a piece of many thousand bytes has needed.
  void forget_long_pieces();
};

/// A pool of scratch objects: a thread takes one for each text, so no piece needs a lock.
class ScratchPool {
 public:
  class Lease {
   public:
    Lease(ScratchPool& pool, std::unique_ptr<EncodeScratch> scratch) : pool_(pool), scratch_(std::move(scratch)) {}
    ~Lease() { pool_.give_back(std::move(scratch_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    EncodeScratch& operator*() const { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<EncodeScratch> scratch_;
  };

  Lease take();

 private:
  void give_back(std::unique_ptr<EncodeScratch> scratch);

  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

/// Immutable and thread-safe; each thread passes its own scratch.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  /// Appends the tokens of one piece (valid UTF-8), with byte ranges relative to it.
  virtual void encode_piece(std::string_view piece, std::vector<Symbol>& out, EncodeScratch& scratch) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  /// Sets scratch.new_symbols to the tokens of `piece`, which is not empty.
  virtual void encode_new_piece(std::string_view piece, EncodeScratch& scratch) const = 0;

  Vocabulary vocabulary_;
};

/// Reads a BPE or Unigram model; any other type is a UserError that contains its name. `byte_level`: the vocabulary is
/// written in the byte-level alphabet and pieces are raw bytes.
std::unique_ptr<TokenModel> make_token_model(const JsonCursor& json, bool byte_level);

}  // namespace hone
