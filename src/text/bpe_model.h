// The "model" of tokenizer.json: vocabulary and merges of byte pair encoding.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe_merge.h"
#include "text/json_cursor.h"
#include "text/piece_cache.h"

namespace hone {

/// Largest token id accepted from a file; bounds what a hostile vocabulary can make us allocate.
inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;

/// String -> token id, looked up by string_view.
struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TokenHash, std::equal_to<>>;

/// Byte pair encoding (Sennrich et al. 2016) over the byte-level alphabet or over characters with byte fallback.
/// Immutable but for its cache; encode_piece() may be called from many threads.
class BpeModel {
 public:
  /// `byte_level`: the vocabulary is written in the byte-level alphabet and pieces are raw bytes.
  BpeModel(const JsonCursor& json, bool byte_level);

  /// Appends the tokens of one piece, with byte ranges relative to it.
  void encode_piece(std::string_view piece, std::vector<Symbol>& out, MergeScratch& scratch) const;

  std::optional<int32_t> token_to_id(std::string_view token) const;
  /// The token's text as the file writes it, or nullptr when no token has this id.
  const std::string* id_to_token(int32_t id) const;
  /// Number of tokens.
  size_t size() const { return ids_.size(); }
  /// Largest id, -1 when there is none.
  int32_t max_id() const { return int32_t(tokens_.size()) - 1; }

 private:
  void read_options(const JsonCursor& json);
  void read_vocabulary(const JsonCursor& vocab);
  void read_merges(const JsonCursor& merges);
  void index_bytes();
  void append_unknown(std::string_view unit, uint32_t begin, uint32_t end, std::vector<Symbol>& symbols,
                      std::optional<Symbol>& pending) const;
  void initial_symbols(std::string_view piece, std::vector<Symbol>& symbols) const;
  std::optional<int32_t> whole_piece(std::string_view piece) const;

  bool byte_level_, ignore_merges_ = false, byte_fallback_ = false, fuse_unk_ = false;
  std::string where_;
  std::optional<std::string> unk_token_;
  TokenIds ids_;
  std::vector<const std::string*> tokens_;  // by id; keys of ids_ (stable), null where no token has the id
  std::array<int32_t, 256> byte_symbols_;   // byte level: token of each byte; -1: none
  std::array<int32_t, 256> fallback_;       // token "<0xNN>" of each byte; -1: none
  MergeTable merges_;
  std::unique_ptr<PieceCache> cache_ = std::make_unique<PieceCache>();
};

}  // namespace hone
