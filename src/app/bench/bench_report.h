// What every benchmark's results say about where and when they were taken.
#pragma once

#include <string>
#include <vector>

#include "core/base/device.h"
#include "core/stream/profiler.h"
#include "core/text/json_fwd.h"

namespace hone {

/// Today in UTC: 2026-11-25.
std::string utc_date();

/// {"bench", "version", "date", "device", "device_name", "host", "cores"}
Json bench_facts(const std::string& bench, Device device);

/// Where a benchmark writes, and what it reads.
struct BenchOutput {
  std::string json;     ///< file for the results; "-": standard output, "": none
  std::string profile;  ///< file for a time line; "": none
  std::vector<std::string> inputs = {};
  bool force = false;  ///< replace files that are not earlier results
};

/// Throws UserError if a file may not be written, before the benchmark runs.
void require_bench_output(const BenchOutput& output);

/// Writes results to the file or to standard output.
void write_bench_json(const BenchOutput& output, const Json& results);

/// The ending of the time line of experts on the CPU.
inline constexpr const char* kHostEnding = ".host";

/// Writes a time line to the file with `ending` added to its name.
void write_bench_profile(const BenchOutput& output, const Profile& profile, const char* ending = "");

}  // namespace hone
