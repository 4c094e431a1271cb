#include "report/tracker/tracker_store.h"

#include <chrono>
#include <fstream>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

int64_t tracker_now() {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  return duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void write_tracker_run(const std::string& path, const JsonValue& run) {
  try {
    write_durably(path, run->dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } catch (const UserError&) {
  }
}

std::string read_tracker_run(const std::string& path, const JsonValue& place) {
  std::ifstream file(path);
  if (!file) return "";
  const Json run = parse_json(file);
  if (!run.is_object() || !run.contains("run_id") || !run["run_id"].is_string()) return "";
  for (const auto& [key, value] : place->items()) {
    if (!run.contains(key) || run[key] != value) return "";
  }
  return run["run_id"].get<std::string>();
}

}  // namespace hone
