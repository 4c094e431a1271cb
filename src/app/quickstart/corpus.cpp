#include "app/quickstart/corpus.h"

#include <fmt/format.h>

#include <array>
#include <set>
#include <span>
#include <string_view>

#include "core/base/error.h"
#include "core/text/json.h"
#include "weights/checkpoint.h"

namespace hone {
namespace {

constexpr int kFirstYear = 2020, kYears = 40;

bool is_leap_year(int year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

}  // namespace

int days_in_month(int year, int month) {
  constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  HONE_ASSERT(month >= 1 && month <= 12);
  return kDays[month - 1] + (month == 2 && is_leap_year(year) ? 1 : 0);
}

std::string iso(const DateTime& m) {
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}", m.year, m.month, m.day, m.hour, m.minute);
}

DateTime draw_moment(PhiloxSequence& random) {
  DateTime moment;
  do {
    moment.year = kFirstYear + static_cast<int>(random.below(kYears));
    moment.month = 1 + static_cast<int>(random.below(12));
    moment.day = 1 + static_cast<int>(random.below(31));
  } while (moment.day > days_in_month(moment.year, moment.month));
  moment.hour = static_cast<int>(random.below(24));
  moment.minute = static_cast<int>(random.below(60));
  if (random.below(4) == 0) {
    moment.minute = 0;
    if (random.below(4) == 0) moment.hour = random.below(2) == 0 ? 0 : 12;
  }
  return moment;
}

bool is_held_out(const DateTime& m) {
  constexpr uint64_t kTestKey = 0x63616c656e646172;  // "calendar"
  const uint64_t minutes =
      (((static_cast<uint64_t>(m.year) * 12 + static_cast<uint64_t>(m.month)) * 32 + static_cast<uint64_t>(m.day)) *
           24 +
       static_cast<uint64_t>(m.hour)) *
          60 +
      static_cast<uint64_t>(m.minute);
  return mix_key(kTestKey, minutes) % 10 == 0;
}

namespace {

constexpr std::array<std::string_view, 30> kEnglishEvents = {
    "lunch",          "dinner",          "breakfast",      "meeting",         "team meeting",   "dentist",
    "haircut",        "piano lesson",    "yoga",           "call with Anna",  "lunch with Tom", "train to Paris",
    "flight to Rome", "concert",         "exam",           "book club",       "birthday party", "doctor",
    "school play",    "job interview",   "movie night",    "board meeting",   "football",       "wedding",
    "garden party",   "coffee with Mia", "car inspection", "vet appointment", "chess club",     "rehearsal"};

constexpr std::array<std::string_view, 30> kGermanEvents = {
    "Mittagessen",   "Abendessen",     "Frühstück",     "Besprechung",      "Teamsitzung",   "Zahnarzt",
    "Friseur",       "Klavierstunde",  "Yoga",          "Anruf bei Anna",   "Essen mit Tom", "Zug nach Paris",
    "Flug nach Rom", "Konzert",        "Prüfung",       "Lesekreis",        "Geburtstag",    "Arzttermin",
    "Schultheater",  "Vorstellung",    "Kinoabend",     "Vorstandssitzung", "Fußball",       "Hochzeit",
    "Gartenfest",    "Kaffee mit Mia", "Autowerkstatt", "Tierarzt",         "Schachclub",    "Probe"};

constexpr std::array<std::string_view, 12> kEnglishMonths = {"January",   "February", "March",    "April",
                                                             "May",       "June",     "July",     "August",
                                                             "September", "October",  "November", "December"};

constexpr std::array<std::string_view, 12> kGermanMonths = {"Januar",    "Februar", "März",     "April",
                                                            "Mai",       "Juni",    "Juli",     "August",
                                                            "September", "Oktober", "November", "Dezember"};

// Named fields: {event}, {month}, {short} (month in three letters), {day}, {th} (3rd), {year}, {time}.
constexpr std::array<std::string_view, 14> kEnglishTaught = {"{event} {month} {day}, {year} at {time}",
                                                             "{event} on {month} {th}, {year} at {time}",
                                                             "{event} at {time} on {month} {day}, {year}",
                                                             "{event} on the {th} of {month} {year}, {time}",
                                                             "{event}, {time}, {short} {day} {year}",
                                                             "{event} ({month} {th} {year}, {time})",
                                                             "{time} on the {th} of {month} {year}: {event}",
                                                             "{month} {day} {year}, {time}, {event}",
                                                             "{short} {th} {year} at {time} {event}",
                                                             "on {short} {day}, {year} at {time}: {event}",
                                                             "please schedule {event} for {short} {day} {year}, {time}",
                                                             "remind me of {event} at {time}, {month} {day}, {year}",
                                                             "is {event} on the {th} of {month} {year} at {time}?",
                                                             "there is {event} at {time} on {short} {th}, {year}"};

constexpr std::array<std::string_view, 5> kEnglishNew = {
    "can we move {event} to {time}, {month} {th}, {year}?", "don't forget: {event} ({month} {day}, {year}, {time})",
    "{event} starts at {time} sharp on {short} {day}, {year}", "on {month} {day} {year} we have {event} at {time}",
    "{year}, {month} the {th}, {time}: {event}"};

// Also {dd} and {mm}, day and month in two digits.
constexpr std::array<std::string_view, 9> kGermanTaught = {
    "{event} am {day}. {month} {year} um {time}",
    "am {day}. {month} {year} um {time}: {event}",
    "{event}, {dd}.{mm}.{year}, {time}",
    "um {time} am {dd}.{mm}.{year} {event}",
    "{event} um {time} am {day}. {month} {year}",
    "{event} ({day}. {month} {year}, {time})",
    "bitte {event} für den {day}. {month} {year}, {time} eintragen",
    "ist am {dd}.{mm}.{year} um {time} {event}?",
    "erinnere mich an {event} um {time} am {day}. {month} {year}"};

constexpr std::array<std::string_view, 4> kGermanNew = {
    "können wir {event} auf den {day}. {month} {year}, {time} verschieben?",
    "nicht vergessen: {event} ({dd}.{mm}.{year}, {time})", "wir haben am {day}. {month} {year} um {time} {event}",
    "{event} beginnt um {time}, und zwar am {dd}.{mm}.{year}"};

template <size_t N>
std::string_view one_of(const std::array<std::string_view, N>& choices, PhiloxSequence& random) {
  return choices[random.below(N)];
}

std::string ordinal(int day) {
  const bool teen = day >= 11 && day <= 13;
  const int digit = teen ? 0 : day % 10;
  return fmt::format("{}{}", day, digit == 1 ? "st" : digit == 2 ? "nd" : digit == 3 ? "rd" : "th");
}

std::string english_time(const DateTime& m, PhiloxSequence& random) {
  const uint64_t style = random.below(4);
  if (style == 0) return fmt::format("{:02}:{:02}", m.hour, m.minute);
  if (m.minute == 0 && m.hour == 12 && style == 1) return "noon";
  if (m.minute == 0 && m.hour == 0 && style == 1) return "midnight";
  const int hour = m.hour % 12 == 0 ? 12 : m.hour % 12;
  const std::string_view half = m.hour < 12 ? "am" : "pm";
  if (m.minute == 0 && style <= 2) return fmt::format("{} {}", hour, half);
  return fmt::format("{}:{:02} {}", hour, m.minute, half);
}

std::string german_time(const DateTime& m, PhiloxSequence& random) {
  const uint64_t style = random.below(3);
  if (m.minute == 0 && m.hour == 0 && style == 0) return "Mitternacht";
  if (m.minute == 0 && style != 1) return fmt::format("{} Uhr", m.hour);
  if (style == 2) return fmt::format("{} Uhr {}", m.hour, m.minute);
  return fmt::format("{}{}{:02} Uhr", m.hour, style == 0 ? '.' : ':', m.minute);
}

}  // namespace

std::string calendar_sentence(const DateTime& m, Language language, Phrasing phrasing, PhiloxSequence& random) {
  using fmt::arg;
  const auto month = static_cast<size_t>(m.month - 1);
  if (language == Language::kEnglish) {
    const std::string_view pattern =
        phrasing == Phrasing::kTaught ? one_of(kEnglishTaught, random) : one_of(kEnglishNew, random);
    const std::string_view event = one_of(kEnglishEvents, random), name = kEnglishMonths[month];
    return fmt::format(fmt::runtime(pattern), arg("event", event), arg("month", name), arg("short", name.substr(0, 3)),
                       arg("day", m.day), arg("th", ordinal(m.day)), arg("year", m.year),
                       arg("time", english_time(m, random)));
  }
  const std::string_view pattern =
      phrasing == Phrasing::kTaught ? one_of(kGermanTaught, random) : one_of(kGermanNew, random);
  const std::string_view event = one_of(kGermanEvents, random);
  return fmt::format(fmt::runtime(pattern), arg("event", event), arg("month", kGermanMonths[month]), arg("day", m.day),
                     arg("dd", fmt::format("{:02}", m.day)), arg("mm", fmt::format("{:02}", m.month)),
                     arg("year", m.year), arg("time", german_time(m, random)));
}

std::vector<Example> draw_examples(const ExampleRequest& request, uint64_t seed) {
  const uint64_t use = (request.language == Language::kGerman ? 1u : 0u) +
                       (request.phrasing == Phrasing::kNew ? 2u : 0u) + (request.held_out ? 4u : 0u);
  PhiloxSequence random(mix_key(seed, use));
  std::set<DateTime> seen;
  std::vector<Example> examples;
  examples.reserve(static_cast<size_t>(request.count));
  while (static_cast<int64_t>(examples.size()) < request.count) {
    const DateTime moment = draw_moment(random);
    if (is_held_out(moment) != request.held_out || !seen.insert(moment).second) continue;
    examples.push_back({calendar_sentence(moment, request.language, request.phrasing, random), iso(moment)});
  }
  return examples;
}

Json question_messages(const Example& example) {
  return Json::array({{{"role", "user"}, {"content", example.question}}});
}

void write_chat_data(const std::vector<Example>& examples, const std::filesystem::path& file) {
  std::string text;
  for (const Example& example : examples) {
    Json messages = question_messages(example);
    messages.push_back({{"role", "assistant"}, {"content", example.answer}});
    text += Json{{"messages", std::move(messages)}}.dump() + "\n";
  }
  write_text_file(file, text);
}

}  // namespace hone
