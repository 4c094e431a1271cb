// Encodes text to token ids and decodes ids, with the results of Hugging Face tokenizers for the same tokenizer.json.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/aligned_text.h"
#include "text/detokenizer.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"
#include "text/tokenizer_config.h"

namespace hone {

/// Token ids and, for each, its bytes [begin, end) of the original text, ascending. Where the text was not rewritten,
/// the ranges are adjacent and cover the text exactly, also inside characters. The tokens of a rewritten section
/// (normalisation, ill-formed UTF-8) all have the whole section as range. Tokens added around the text have an empty
/// range.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<ByteRange> offsets;
};

/// Ids of the special tokens; from tokenizer_config.json, special_tokens_map.json, then generation_config.json.
struct SpecialTokens {
  std::optional<int32_t> bos, eos, pad, unk;
  /// Ids that end generation: eos and those of generation_config.json, without duplicates.
  std::vector<int32_t> stop;
};

/// A tokenizer with byte pair encoding, byte-level (Qwen, DeepSeek, gpt-oss, Llama 3) or with byte fallback (Mixtral),
/// or with a Unigram language model (T5, XLM-R). Immutable; all const members are thread-safe. Ignores `truncation` and
/// `padding` of tokenizer.json: the data pipeline limits the length of samples.
class Tokenizer {
 public:
  /// Reads a tokenizer.json or, given a directory, tokenizer.json and the files of TokenizerConfig. Throws UserError
  /// with file and key if something is missing, malformed or not supported.
  static Tokenizer load(const std::filesystem::path& directory_or_file);
  /// The same with tokens that a run adds to those of the directory: they have the ids after the last one.
  static Tokenizer load(const std::filesystem::path& directory, const NewTokens& more);

  /// Parses the contents of a tokenizer.json; errors contain `file`.
  static Tokenizer parse(std::string_view json, const std::string& file);

  /// Ids of `text`; ill-formed UTF-8 is read as U+FFFD. `add_special_tokens` adds those of the post-processor around
  /// it. Text that equals an added token becomes that token. Throws UserError for texts over 128 MiB.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const;
  /// Without the added tokens for which `is_text(token, bytes of the text)` holds: they are encoded as other text is.
  using IsText = std::function<bool(const AddedToken&, ByteRange)>;
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens, const IsText& is_text) const;

  /// The text of `ids`, well-formed UTF-8; ignores unknown ids and, with `skip_special_tokens`, special tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  /// The pieces of `text` (normalised) that BPE merges within, without added tokens; for training a vocabulary.
  std::vector<std::string> pieces(std::string_view text) const;

  std::optional<int32_t> token_to_id(std::string_view token) const;
  /// The token as in tokenizer.json, or nothing for an unknown id.
  std::optional<std::string> id_to_token(int32_t id) const;
  /// Number of rows that an embedding needs: 1 + the largest id.
  int32_t vocab_size() const { return 1 + std::max(model_->vocabulary().max_id(), added_->max_id()); }

  /// Whether decode() with skip_special_tokens skips `id`.
  bool is_special(int32_t id) const;
  /// Added tokens, special or not, ascending by id.
  std::vector<AddedToken> added_tokens() const;
  const SpecialTokens& special_tokens() const { return special_; }

  /// Replaces special tokens of the files. eos and the tokens that end a turn end generation as well. Throws UserError
  /// with the first token that tokenizer.json does not have.
  void choose(const TokenChoice& choice);

  /// The chat template `name`, or nothing.
  std::optional<std::string> chat_template(std::string_view name = "default") const;

 private:
  Tokenizer() = default;

  void read(const IndexedJson& json, const std::string& file, const TokensBeside& beside = {});
  void apply_config(TokenizerConfig config, const std::string& directory);
  template <class Visitor>
  void walk(std::string_view text, Visitor& visitor, const IsText* is_text = nullptr) const;
  template <class Visitor>
  void walk_section(AlignedText section, Visitor& visitor, const IsText* is_text) const;
  std::vector<TextSection> without_text(std::vector<TextSection> sections, const AlignedText& of,
                                        const IsText* is_text) const;
  template <class Visitor>
  void walk_pieces(AlignedText text, Visitor& visitor) const;

  std::unique_ptr<Normalizer> normalizer_;  // null: none
  PreTokenizerSpec pre_tokenizer_;
  std::unique_ptr<TokenModel> model_;
  std::unique_ptr<ScratchPool> scratches_ = std::make_unique<ScratchPool>();
  std::unique_ptr<AddedTokens> added_;
  SurroundingTokens surrounding_;
  std::unique_ptr<TokenDecoder> decoder_;  // null: tokens joined by spaces
  SpecialTokens special_;
  std::vector<std::pair<std::string, std::string>> chat_templates_;
};

// Streaming decode: returns text as soon as it can no longer change.

/// Decodes generated ids one by one. The returned texts, finish() included, concatenate to the decoding of all ids; an
/// incomplete character is held back. (For byte-fallback tokenizers only if the bytes are valid UTF-8, since they
/// decode an invalid run of bytes as a whole.) Borrows the tokenizer.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  /// The text that `id` completes; may be empty.
  std::string push(int32_t id);
  /// The text held back, with U+FFFD for incomplete characters.
  std::string finish();

 private:
  std::string take(const std::string& text);
  /// The text of all but the last of many tokens held back, so that a window stays short.
  std::string take_settled(const std::string& text);

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  // Decoding may depend on the token before (spaces at the start), so the last returned tokens stay as context.
  std::vector<int32_t> window_;
  size_t context_ = 0;        // number of tokens in the window whose text has been returned
  std::string context_text_;  // their text
};

}  // namespace hone
