// Unigram language model tokenization (Kudo 2018), as SentencePiece trains it.
#pragma once

#include <array>
#include <vector>

#include "text/token_model.h"
#include "text/token_trie.h"

namespace hone {

/// The tokens of a piece are those of largest summed score (log probability); of equal ones, the path that the search
/// from front to back finds first, as in Hugging Face tokenizers.
class UnigramModel : public TokenModel {
 public:
  /// Reads `vocab` ([[token, score], …]; the index is the id), `unk_id` and `byte_fallback`.
  explicit UnigramModel(const JsonCursor& json);

 protected:
  /// Characters without a token cost 10 more than the worst token each, and neighbours become one unknown token, or
  /// with byte_fallback their bytes. Throws UserError if there is no unknown token.
  void encode_new_piece(std::string_view piece, EncodeScratch& scratch) const override;

 private:
  void read_vocabulary(const JsonCursor& vocab);
  void find_best_path(std::string_view piece, std::vector<UnigramStep>& steps) const;
  void append_text(std::string_view piece, uint32_t begin, uint32_t end, std::vector<Symbol>& symbols) const;

  std::string where_;
  std::vector<double> scores_;
  int32_t unk_id_ = -1;  // -1: none
  double unk_score_ = 0;
  bool byte_fallback_ = false;
  std::array<int32_t, 256> fallback_{};
  TokenTrie trie_;
};

}  // namespace hone
