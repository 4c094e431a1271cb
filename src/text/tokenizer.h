// Text to token ids and back, as Hugging Face tokenizers does it from the same tokenizer.json.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
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

/// Token ids and, for each, the bytes of the original text it stands for: [begin, end), ascending. Where nothing was
/// rewritten, neighbours meet and cover the text exactly, inside of characters too; tokens of a rewritten stretch
/// (normalisation, ill-formed UTF-8) each have all of it. Tokens put around the text have an empty range.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<ByteRange> offsets;
};

/// Ids of the tokens with a role; from tokenizer_config.json, special_tokens_map.json, then generation_config.json.
struct SpecialTokens {
  std::optional<int32_t> bos, eos, pad, unk;
  /// Ids that end generation: eos and those of generation_config.json, each once.
  std::vector<int32_t> stop;
};

/// A tokenizer of byte pair encoding, byte-level (Qwen, DeepSeek, gpt-oss, Llama 3) or with byte fallback (Mixtral), or
/// of a Unigram language model (T5, XLM-R). Immutable; all const members may be called from many threads.
/// `truncation` and `padding` of tokenizer.json are not applied: how long a sample may be is the data's business.
class Tokenizer {
 public:
  /// Reads a tokenizer.json or, of a directory, tokenizer.json with the files TokenizerConfig names. What is missing,
  /// broken or not supported is a UserError naming file and key.
  static Tokenizer load(const std::filesystem::path& directory_or_file);

  /// From the contents of a tokenizer.json; `file` names it in errors.
  static Tokenizer parse(std::string_view json, const std::string& file);

  /// Ids of `text`; ill-formed UTF-8 is read as U+FFFD. `add_special_tokens` puts those of the post-processor around
  /// it. Text of the form of an added token becomes that token. Throws UserError for texts over 128 MiB.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const;

  /// The text of `ids`, well-formed UTF-8; unknown ids are left out, special tokens on request.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  /// The pieces of `text` (normalised) that merging works within, added tokens left out; for training a vocabulary.
  std::vector<std::string> pieces(std::string_view text) const;

  std::optional<int32_t> token_to_id(std::string_view token) const;
  /// The token as tokenizer.json writes it, or nothing for an unknown id.
  std::optional<std::string> id_to_token(int32_t id) const;
  /// Rows an embedding needs: 1 + the largest id.
  int32_t vocab_size() const { return 1 + std::max(model_->vocabulary().max_id(), added_->max_id()); }

  /// Whether decoding that skips special tokens leaves `id` out.
  bool is_special(int32_t id) const;
  /// Added tokens, special or not, ascending by id.
  std::vector<AddedToken> added_tokens() const;
  const SpecialTokens& special_tokens() const { return special_; }

  /// Gives tokens a role, in the place of those of the files. eos and the tokens that end a turn end generation as
  /// well. Throws UserError naming the first that tokenizer.json does not have.
  void choose(const TokenChoice& choice);

  /// The chat template `name`, or nothing.
  std::optional<std::string> chat_template(std::string_view name = "default") const;

 private:
  Tokenizer() = default;

  void read(const IndexedJson& json, const std::string& file);
  void apply_config(TokenizerConfig config, const std::string& directory);
  template <class Visitor>
  void walk(std::string_view text, Visitor& visitor) const;
  template <class Visitor>
  void walk_section(AlignedText section, Visitor& visitor) const;
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

// Decoding while tokens arrive: text is handed out as soon as it can no longer change.

/// Turns generated ids into text piece by piece. The pieces, finish() included, concatenate to the decoding of all ids;
/// a character whose bytes are not all there is held back. (Of byte-fallback tokenizers: as long as the bytes are
/// UTF-8, since they decode a broken run of bytes as a whole.) Borrows the tokenizer.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  /// The text that `id` completes; may be empty.
  std::string push(int32_t id);
  /// What was held back, with U+FFFD for characters that stay incomplete.
  std::string finish();

 private:
  std::string take(const std::string& text);

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  // Decoding may depend on the token before (spaces at the start), so the last tokens handed out stay as context.
  std::vector<int32_t> window_;
  size_t context_ = 0;        // tokens of the window that are handed out
  std::string context_text_;  // their text
};

}  // namespace hone
