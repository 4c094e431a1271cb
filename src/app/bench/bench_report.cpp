#include "app/bench/bench_report.h"

#include <fmt/chrono.h>

#include <chrono>
#include <thread>

#include "app/output.h"
#include "core/base/error.h"
#include "core/base/program.h"
#include "core/cpu/cpu_features.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "session/device_facts.h"
#include "train/report/trace_file.h"

namespace hone {

std::string utc_date() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(now));
}

Json bench_facts(const std::string& bench, Device device) {
  return {{"bench", bench},
          {"version", version()},
          {"date", utc_date()},
          {"device", device.kind == DeviceKind::kCpu ? "cpu" : "cuda"},
          {"device_name", device_name(device)},
          {"host", cpu_name()},
          {"cores", std::thread::hardware_concurrency()}};
}

namespace {

/// Earlier results of a benchmark, which its next run replaces.
bool is_results(std::string_view beginning) {
  return beginning.starts_with("{\n") && beginning.find("\"bench\": \"") != std::string_view::npos &&
         beginning.find("\"cores\": ") != std::string_view::npos;
}

bool is_time_line(std::string_view beginning) { return beginning.starts_with(kTraceBeginning); }

OutputRule bench_rule(const BenchOutput& output, bool (*is_earlier)(std::string_view)) {
  OutputRule rule{{}, output.force, is_earlier};
  for (const std::string& path : output.inputs) rule.inputs.add(path, "an input of the benchmark");
  return rule;
}

}  // namespace

void require_bench_output(const BenchOutput& output) {
  if (!output.json.empty() && output.json != "-") require_output(output.json, bench_rule(output, is_results));
  if (output.profile.empty()) return;
  if (output.profile == output.json) {
    throw UserError("results and time line have the same file", "--profile", "give them names of their own");
  }
  for (const char* ending : {"", kHostEnding})
    require_output(output.profile + ending, bench_rule(output, is_time_line));
}

void write_bench_json(const BenchOutput& output, const Json& results) {
  const std::string text = results.dump(2) + "\n";
  if (output.json == "-") {
    print_text(text);
  } else if (!output.json.empty()) {
    write_output(output.json, text, bench_rule(output, is_results));
  }
}

void write_bench_profile(const BenchOutput& output, const Profile& profile, const char* ending) {
  const std::filesystem::path path = output.profile + ending;
  const TemporaryFolder temporary(path);  // removed if the disk is full
  const std::filesystem::path staged = temporary.path() / "trace.json";
  TraceFile(staged).add(profile);
  sync_tree(temporary.path());
  place_output(staged, path, bench_rule(output, is_time_line));
}

}  // namespace hone
