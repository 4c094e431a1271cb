// Makes a byte-level BPE tokenizer for a corpus, in the style of Qwen3's tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/json_fwd.h"

namespace hone {

struct BpeTrainerOptions {
  /// Tokens in all: 256 bytes, merges and added tokens. Fewer are made when the corpus has no more pairs to merge.
  int32_t vocab_size = 4096;
  /// Added tokens that decoding may skip, in the order of their ids, which follow the merges.
  std::vector<std::string> special_tokens;
  /// Added tokens that are ordinary text (<think>), after the special ones.
  std::vector<std::string> text_tokens = {};
  /// A pair seen less often is not merged.
  int64_t min_frequency = 2;
};

/// The contents of a tokenizer.json: NFC, Qwen's split pattern, byte-level BPE. Deterministic: it depends on the texts'
/// words and their counts only; the most frequent pair merges first, of equals the one with the smallest ids. Added
/// tokens in the texts are not trained on. Throws UserError when `vocab_size` has no room for bytes and added tokens,
/// or an added token is empty or given twice.
Json train_bpe(std::span<const std::string> texts, const BpeTrainerOptions& options);

/// Writes the result of train_bpe() to `file`.
void write_tokenizer_json(const Json& tokenizer, const std::filesystem::path& file);

}  // namespace hone
