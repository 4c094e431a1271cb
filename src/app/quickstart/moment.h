// DateTime: a date with a time of day, the value that the quickstart's sentences say.
#pragma once

#include <compare>
#include <string>

#include "core/philox.h"

namespace hone {

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

/// A moment of the years 2020 to 2059. Every day is as likely as any other; a quarter are full hours, and of these some
/// are noon or midnight, which have words of their own.
DateTime draw_moment(PhiloxSequence& random);

/// Whether a moment is kept for tests: one in ten, by a hash of the moment alone, so that no seed trains on it.
bool is_held_out(const DateTime& moment);

}  // namespace hone
