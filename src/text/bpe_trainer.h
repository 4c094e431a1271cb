// Trains a byte-level BPE tokenizer on a corpus, in the style of Qwen3's tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

struct BpeTrainerOptions {
  /// Total number of tokens: 256 bytes, merges and added tokens. Smaller when the corpus has no more pairs to merge.
  int32_t vocab_size = 4096;
  /// Special added tokens, in the order of their ids, which follow the merges.
  std::vector<std::string> special_tokens;
  /// Added tokens that are not special (<think>), with ids after the special ones.
  std::vector<std::string> text_tokens = {};
  /// A pair that occurs less often is not merged.
  int64_t min_frequency = 2;
};

/// Returns the contents of a tokenizer.json: NFC, Qwen's split pattern, byte-level BPE. Deterministic: it depends only
/// on the words of the texts and their counts. The most frequent pair merges first, and of equal counts the pair with
/// the smallest ids. Added tokens in the texts are not trained on. Throws UserError when `vocab_size` is too small for
/// bytes and added tokens, or when an added token is empty or given twice.
Json train_bpe(std::span<const std::string> texts, const BpeTrainerOptions& options);

/// Writes the result of train_bpe() to `file`.
void write_tokenizer_json(const Json& tokenizer, const std::filesystem::path& file);

}  // namespace hone
