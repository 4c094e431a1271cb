// Rows to samples: tokens, labels and weights.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/chat_encoder.h"

namespace hone {

/// Immutable; may be used from many threads.
class SampleEncoder {
 public:
  /// `tokenizer` outlives this; null: only tokenized rows can be read. `vocab_size`: rows of the model's embedding.
  SampleEncoder(const Tokenizer* tokenizer, const ChatEncoderOptions& options, int64_t vocab_size);

  /// Throws UserError at `where` (file:line): no tokenizer or template, an error of the template, a token id that the
  /// model does not have.
  EncodedRow encode(FormattedRow row, const std::string& where) const;

  /// Tokens of a text as a sample: with what is put in front of it and behind it.
  int64_t count_tokens(std::string_view text) const;
  /// The model has a chat template, or the options state one.
  bool has_chat_template() const { return chat_ && chat_->has_template(); }

 private:
  EncodedRow encode_completion(const PromptCompletion& row) const;
  void check_ids(const Sample& sample, bool from_text, const std::string& where) const;

  const Tokenizer* tokenizer_;
  TrainOn train_on_;
  bool add_eos_;
  int64_t vocab_size_;
  std::optional<ChatEncoder> chat_;
  std::vector<int32_t> leading_ids_;  // what the tokenizer puts in front of a text
  bool parts_join_ = false;           // the encodings of two texts, joined, are an encoding of the joined text
};

}  // namespace hone
