// SentencePiece's own normalisation: a compiled table of replacements inside of tokenizer.json.
#pragma once

#include <memory>

#include "text/normalizer.h"

namespace hone {

/// From {"type": "Precompiled", "precompiled_charsmap": base64}. A broken table is a UserError naming the key.
/// Graphemes follow utf8proc's Unicode version.
std::unique_ptr<Normalizer> make_precompiled_normalizer(const JsonCursor& json);

}  // namespace hone
