// Calendar sentences: a DateTime in the words of a language.
#pragma once

#include <string>

#include "app/quickstart/moment.h"

namespace hone {

enum class Language { kEnglish, kGerman };

enum class Phrasing {
  kTaught,  ///< wordings that training shows
  kNew,     ///< wordings that it never shows, of the same words for dates and times
};

/// One calendar entry that says the moment exactly: "lunch March 3, 2031 at 2:45 pm", "Mittagessen am 3. März 2031 um
/// 14:45 Uhr". Event and wording are drawn from `random`.
std::string calendar_sentence(const DateTime& moment, Language language, Phrasing phrasing, PhiloxSequence& random);

}  // namespace hone
