// Tokens beside the model's in tokenizer.json: "added_tokens", found in the text before anything else happens to it,
// and those that the "post_processor" puts around it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/aligned_text.h"
#include "text/json_cursor.h"
#include "text/normalizer.h"
#include "text/token_model.h"
#include "text/token_search.h"

namespace hone {

struct AddedToken {
  std::string content;
  std::string pattern;  // what is searched and decoded: the content, normalised if `normalized`
  int32_t id = 0;
  bool special = false;      // left out by decoding that skips special tokens
  bool normalized = false;   // searched in the normalised text, in normalised form
  bool single_word = false;  // found only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
};

/// A stretch of text: an added token, or text between them.
struct TextSection {
  ByteRange range;
  std::optional<int32_t> token;
};

class AddedTokens {
 public:
  /// Reads the array `json` (none when absent). Ids follow Hugging Face tokenizers, which does not use those in the
  /// file: a content of the vocabulary has its id there, the others are numbered from the vocabulary's size in file
  /// order. Of entries with the same content the last one counts.
  AddedTokens(const std::optional<JsonCursor>& json, const Vocabulary& vocabulary, const Normalizer* normalizer);

  /// Cuts original text at the tokens that are not normalised; sections cover the text, none is empty.
  std::vector<TextSection> split_original(std::string_view text) const { return split(text, original_); }
  /// Cuts normalised text at the normalised tokens.
  std::vector<TextSection> split_normalized(std::string_view text) const { return split(text, normalized_); }
  bool has_normalized() const { return !normalized_.empty(); }

  const AddedToken* find(int32_t id) const;
  const AddedToken* find(std::string_view content) const;
  bool is_special(std::string_view content) const { return special_.contains(content); }
  /// Largest id of an added token, -1 when there is none.
  int32_t max_id() const { return max_id_; }
  const std::unordered_map<int32_t, AddedToken>& by_id() const { return by_id_; }

 private:
  std::vector<TextSection> split(std::string_view text, const TokenSearch& search) const;

  std::unordered_map<int32_t, AddedToken> by_id_;
  TokenIds ids_, special_;
  TokenSearch original_, normalized_;
  int32_t max_id_ = -1;
};

/// Tokens that encoding puts before and after a text when special tokens are asked for.
struct SurroundingTokens {
  std::vector<int32_t> before, after;
};

/// ByteLevel (which only trims offsets; Hone's are exact), TemplateProcessing of a single text and Sequence, or null;
/// another type is a UserError naming it.
SurroundingTokens read_post_processor(const std::optional<JsonCursor>& json);

}  // namespace hone
