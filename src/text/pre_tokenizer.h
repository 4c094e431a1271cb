// The "pre_tokenizer" of tokenizer.json: splits a normalised text into pieces; BPE merges within a piece.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "text/aligned_text.h"
#include "text/json_cursor.h"

namespace hone {

/// A text and its pieces, in order; bytes between pieces have been removed.
struct PreTokenized {
  AlignedText text;
  std::vector<ByteRange> pieces;

  /// The whole text as one piece; no piece if it is empty.
  explicit PreTokenized(AlignedText source);
};

/// The split of the ByteLevel type with use_regex: GPT-2's.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Splits every piece further; some types also insert characters.
  virtual void apply(PreTokenized& split) const = 0;
};

struct PreTokenizerSpec {
  std::unique_ptr<PreTokenizer> steps;  // null: the text is one piece
  StepCount count = {};
  bool byte_level = false;  // vocabulary and merges are written in the byte-level alphabet
};

/// Reads Split, ByteLevel (as the last step), Digits, Metaspace, WhitespaceSplit, Sequence or null; any other type is a
/// UserError that contains its name.
PreTokenizerSpec make_pre_tokenizer(const std::optional<JsonCursor>& json);

}  // namespace hone
