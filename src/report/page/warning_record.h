// The warnings and errors of run.log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

/// Collects the lines of run.log.
class WarningRecord {
 public:
  void add(std::string_view line);

  /// [{level, text, times, last: its time}]: each text once, the latest last.
  Json json() const;

 private:
  struct Warning {
    std::string level, text, last;
    int64_t times = 0;
  };

  void close();

  std::vector<Warning> warnings_;
  std::optional<Warning> open_;  // its further lines may follow
};

}  // namespace hone
