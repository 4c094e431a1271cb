// Decoding while tokens arrive: text is handed out as soon as it can no longer change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace hone {

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
