#include "app/quickstart/moment.h"

#include <fmt/format.h>

#include "core/error.h"

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

}  // namespace hone
