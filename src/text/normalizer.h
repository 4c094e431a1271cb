// The "normalizer" of tokenizer.json: rewrites a text before it is cut into pieces.
#pragma once

#include <memory>

#include "text/aligned_text.h"
#include "text/json_cursor.h"

namespace hone {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Rewrites `text` (valid UTF-8), or leaves it as it is when nothing changes.
  virtual void apply(AlignedText& text) const = 0;
};

/// NFC, NFD, NFKC, NFKD, Lowercase, Precompiled, Prepend, Replace, Strip and Sequence; another type is a UserError
/// naming it. Lowercase follows utf8proc's Unicode version, which may lack capitals added since Unicode 14.
std::unique_ptr<Normalizer> make_normalizer(const JsonCursor& json);

/// The Unicode normalisation forms.
enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
std::unique_ptr<Normalizer> make_unicode_normalizer(UnicodeForm form);

/// Whether a character keeps itself in `form` and neither joins nor passes the characters beside it, so that a text
/// may be cut before it and normalised in parts.
bool is_inert(char32_t code, UnicodeForm form);

}  // namespace hone
