// Added tokens and post-processor of tokenizer.json: "added_tokens" are matched in the text before any other step; the
// "post_processor" adds tokens around the text.
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
  std::string pattern;  // the string to search and decode: the content, normalised if `normalized`
  int32_t id = 0;
  bool special = false;      // skipped by decode() with skip_special_tokens
  bool normalized = false;   // matched in the normalised text, in normalised form
  bool single_word = false;  // matched only where no word character is adjacent
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
};

/// Added tokens that files beside tokenizer.json name; transformers adds them too.
struct TokensBeside {
  /// The tokens of added_tokens_decoder in tokenizer_config.json, or of added_tokens.json; ascending by the ids of the
  /// file, which are otherwise not used.
  std::vector<AddedToken> tokens;
  /// Special tokens that are added where they are not added tokens yet: those of extra_special_tokens, and, if the
  /// vocabulary has them, bos_token, eos_token etc.
  std::vector<std::string> extra, named;
  /// Tokens that a run adds after all of these, where they are no added tokens yet (NewTokens).
  std::vector<std::string> new_plain, new_special;
};

/// A section of a text: an added token, or the text between two.
struct TextSection {
  ByteRange range;
  std::optional<int32_t> token;
};

class AddedTokens {
 public:
  /// Reads the array `json` (empty when absent), and adds `more` to it. Ids follow Hugging Face tokenizers, which
  /// ignores the ids in the file: a content in the vocabulary has its id there; the others are numbered from the
  /// vocabulary's size in file order. Of entries with the same content the last one is used.
  AddedTokens(const std::optional<JsonCursor>& json, const Vocabulary& vocabulary, const Normalizer* normalizer,
              const TokensBeside& more = {});

  /// Splits the original text at the tokens that are not normalised. Sections cover the text; none is empty.
  std::vector<TextSection> split_original(std::string_view text) const { return split(text, original_); }
  /// Splits normalised text at the normalised tokens.
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

/// Tokens that encoding adds before and after a text with add_special_tokens.
struct SurroundingTokens {
  std::vector<int32_t> before, after;
};

/// Reads ByteLevel (it only trims offsets; Hone's are exact), TemplateProcessing of a single text, Sequence or null.
/// Any other type is a UserError that contains its name.
SurroundingTokens read_post_processor(const std::optional<JsonCursor>& json);

}  // namespace hone
