// The "model" of tokenizer.json: a vocabulary, and how a piece of text becomes tokens of it.
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

/// Largest token id accepted from a file; bounds what a hostile vocabulary can make us allocate.
inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;

/// String -> token id, looked up by string_view.
struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TokenHash, std::equal_to<>>;

/// Tokens and their ids.
class Vocabulary {
 public:
  void reserve(size_t tokens) { ids_.reserve(tokens); }
  /// Gives `token` the id, also where it had another one before. Returns the token that has this id already, or null.
  const std::string* add(std::string_view token, int32_t id);

  std::optional<int32_t> id_of(std::string_view token) const;
  /// The token's text as the file writes it, or nullptr when no token has this id.
  const std::string* token_of(int32_t id) const {
    return id >= 0 && size_t(id) < tokens_.size() ? tokens_[size_t(id)] : nullptr;
  }
  /// Number of entries added.
  size_t size() const { return size_; }
  /// Largest id, -1 when there is none.
  int32_t max_id() const { return int32_t(tokens_.size()) - 1; }

 private:
  TokenIds ids_;
  std::vector<const std::string*> tokens_;  // by id; keys of ids_ (stable), null where no token has the id
  size_t size_ = 0;
};

/// The token "<0xNN>" of each byte; -1: none.
std::array<int32_t, 256> byte_fallback_ids(const Vocabulary& vocabulary);

/// The best way to a byte of a piece, as the search for the most probable tokens goes from front to back.
struct UnigramStep {
  double score = 0;
  int32_t id = -1;  // of the token that ends here; -1: nothing does
  uint32_t begin = 0;
};

/// Memory that encoding reuses from piece to piece and from text to text; for one thread at a time.
struct EncodeScratch {
  PieceCache cache;
  std::vector<Symbol> symbols;      // of a text's piece
  std::vector<Symbol> new_symbols;  // of a piece that the cache does not know
  MergeScratch merge;
  std::vector<UnigramStep> steps;
};

/// Lends scratches: a thread takes one a text, so that no lock is met from piece to piece.
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

/// Immutable; may be used from many threads, each with a scratch of its own.
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

/// BPE or Unigram; another type is a UserError naming it. `byte_level`: the vocabulary is written in the byte-level
/// alphabet and pieces are raw bytes.
std::unique_ptr<TokenModel> make_token_model(const JsonCursor& json, bool byte_level);

}  // namespace hone
