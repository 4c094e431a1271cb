// The tokenizer's keys of GGUF files.
#pragma once

#include <optional>

#include "text/gguf_vocabulary.h"
#include "weights/gguf_file.h"

namespace hone {

/// Adds tokenizer.ggml.* and tokenizer.chat_template; without a vocabulary, that there is none.
void set_tokenizer_keys(const std::optional<GgufVocabulary>& vocabulary, GgufMetadata& metadata);

/// Nothing for a file without a vocabulary. UserError for keys of other types.
std::optional<GgufVocabulary> tokenizer_keys(const GgufMetadata& metadata);

}  // namespace hone
