#include "app/bench/bench_report.h"

#include <fmt/chrono.h>

#include <chrono>
#include <thread>

#include "app/output.h"
#include "core/cpu_features.h"
#include "core/json.h"
#include "core/program.h"
#include "session/device_facts.h"
#include "weights/checkpoint.h"

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

void write_bench_json(const std::string& file, const Json& results) {
  const std::string text = results.dump(2) + "\n";
  if (file == "-") {
    print_text(text);
  } else if (!file.empty()) {
    write_text_file(file, text);
  }
}

}  // namespace hone
