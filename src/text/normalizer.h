// The "normalizer" of tokenizer.json: rewrites a text before it is split into pieces.
#pragma once

#include <memory>

#include "text/aligned_text.h"
#include "text/json_cursor.h"

namespace hone {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Rewrites `text` (valid UTF-8); does nothing if normalisation does not change it.
  virtual void apply(AlignedText& text) const = 0;
};

/// Reads NFC, NFD, NFKC, NFKD, Lowercase, Precompiled, Prepend, Replace, Strip and Sequence; any other type is a
/// UserError that contains its name. Lowercase follows utf8proc's Unicode version, which may lack capitals added since
/// Unicode 14.
std::unique_ptr<Normalizer> make_normalizer(const JsonCursor& json);

/// The Unicode normalisation forms.
enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
std::unique_ptr<Normalizer> make_unicode_normalizer(UnicodeForm form);

/// Whether `form` leaves a character unchanged, and the character neither combines nor reorders with its neighbours. A
/// text may then be split before it and normalised in parts.
bool is_inert(char32_t code, UnicodeForm form);

}  // namespace hone
