// Byte pair encoding: vocabulary and merges.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/token_model.h"

namespace hone {

/// Byte pair encoding (Sennrich et al. 2016) over the byte-level alphabet or over characters with byte fallback.
class BpeModel : public TokenModel {
 public:
  /// `byte_level`: the vocabulary is written in the byte-level alphabet and pieces are raw bytes.
  BpeModel(const JsonCursor& json, bool byte_level);

  void encode_piece(std::string_view piece, std::vector<Symbol>& out, EncodeScratch& scratch) const override;

 protected:
  void encode_new_piece(std::string_view piece, EncodeScratch& scratch) const override;

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
  std::array<int32_t, 256> byte_symbols_;  // byte level: token of each byte; -1: none
  std::array<int32_t, 256> fallback_;
  MergeTable merges_;
  /// No merge joins a space mark to what is before it, so that words merge apart (SentencePiece's vocabularies).
  bool words_merge_apart_ = false;
};

}  // namespace hone
