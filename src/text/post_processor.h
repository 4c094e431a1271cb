// The "post_processor" of tokenizer.json: the special tokens around an encoded text.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "text/json_cursor.h"

namespace hone {

/// Tokens that encoding puts before and after a text when special tokens are asked for.
struct SurroundingTokens {
  std::vector<int32_t> before, after;
};

/// ByteLevel (which only trims offsets; Hone's are exact), TemplateProcessing of a single text and Sequence, or null;
/// another type is a UserError naming it.
SurroundingTokens read_post_processor(const std::optional<JsonCursor>& json);

}  // namespace hone
