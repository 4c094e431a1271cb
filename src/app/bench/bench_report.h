// What every benchmark's results say about where and when they were taken.
#pragma once

#include <string>

#include "core/device.h"
#include "core/json_fwd.h"

namespace hone {

/// Today in UTC: 2026-11-25.
std::string utc_date();

/// {"bench", "version", "date", "device", "device_name", "host", "cores"}
Json bench_facts(const std::string& bench, Device device);

/// Writes results to a file; to standard output for "-", nowhere for "".
void write_bench_json(const std::string& file, const Json& results);

}  // namespace hone
