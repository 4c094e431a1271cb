// Encodes rows as samples: tokens, labels and weights.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/formats/chat_encoder.h"

namespace hone {

/// The tokens that a tokenizer adds before a text.
std::vector<int32_t> leading_ids(const Tokenizer& tokenizer);

/// Immutable and thread-safe.
class SampleEncoder {
 public:
  /// `tokenizer` must outlive this; null: only tokenized rows can be read. `vocab_size`: rows of the model's embedding.
  SampleEncoder(const Tokenizer* tokenizer, const ChatEncoderOptions& options, int64_t vocab_size);

  /// Throws UserError at `where` (file:line) for a missing tokenizer or template, an error of the template, and a token
  /// id outside the model's vocabulary.
  EncodedRow encode(FormattedRow row, const std::string& where) const;

  /// Number of tokens of a text as a sample, including the tokens added before and after it.
  int64_t count_tokens(std::string_view text) const;
  /// Whether the model or the options have a chat template.
  bool has_chat_template() const { return chat_ && chat_->has_template(); }

 private:
  EncodedRow encode_completion(const PromptCompletion& row) const;
  void check_ids(const Sample& sample, bool from_text, const std::string& where) const;

  const Tokenizer* tokenizer_;
  TrainOn train_on_;
  bool add_eos_;
  int64_t vocab_size_;
  std::optional<ChatEncoder> chat_;
  std::vector<int32_t> leading_ids_;  // the tokens that the tokenizer adds before a text
  bool parts_join_ = false;  // whether the concatenated encodings of two texts are an encoding of the concatenated text
};

}  // namespace hone
