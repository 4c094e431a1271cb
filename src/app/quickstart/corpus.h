// The quickstart's data: random moments, sentences that describe them, and questions with answers as chat data.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/text/json_fwd.h"

namespace hone {

// DateTime: a date with a time of day, the value described by the quickstart's sentences.

/// A minute of the Gregorian calendar.
struct DateTime {
  int year = 2000;
  int month = 1;  ///< 1 to 12
  int day = 1;    ///< from 1
  int hour = 0;   ///< 0 to 23
  int minute = 0;

  auto operator<=>(const DateTime&) const = default;
};

/// 28 to 31.
int days_in_month(int year, int month);

/// "2031-03-03T14:45" (ISO 8601)
std::string iso(const DateTime& moment);

/// A moment of the years 2020 to 2059. All days have the same probability; a quarter of the moments are full hours,
/// some of them noon or midnight, which have their own words.
DateTime draw_moment(PhiloxSequence& random);

/// Whether a moment is reserved for tests: one in ten, by a hash of the moment, so that no seed trains on it.
bool is_held_out(const DateTime& moment);

// Calendar sentences: a DateTime in the words of a language.

enum class Language { kEnglish, kGerman };

enum class Phrasing {
  kTaught,  ///< wordings of the training data
  kNew,     ///< wordings that are not in the training data, with the same words for dates and times
};

/// A calendar entry that describes the moment exactly: "lunch March 3, 2031 at 2:45 pm", "Mittagessen am 3. März 2031
/// um 14:45 Uhr". Event and wording are random.
std::string calendar_sentence(const DateTime& moment, Language language, Phrasing phrasing, PhiloxSequence& random);

/// A calendar sentence and its moment in ISO 8601.
struct Example {
  std::string question, answer;
};

struct ExampleRequest {
  Language language = Language::kEnglish;
  Phrasing phrasing = Phrasing::kTaught;
  bool held_out = false;  ///< use only moments reserved for tests; false: only the others
  int64_t count = 0;
};

/// Examples of distinct moments, determined by the request and the seed.
std::vector<Example> draw_examples(const ExampleRequest& request, uint64_t seed);

/// The conversation [{"role": "user", …}] that asks an example's question.
Json question_messages(const Example& example);

/// Writes one {"messages": [user, assistant]} per line.
void write_chat_data(const std::vector<Example>& examples, const std::filesystem::path& file);

}  // namespace hone
