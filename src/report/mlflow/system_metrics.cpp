#include "report/mlflow/system_metrics.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "core/base/printable.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {
namespace {

constexpr double kMegabyte = 1e6;

void add_disk(std::vector<Metric>& metrics) {
  struct statvfs disk {};
  if (statvfs("/", &disk) != 0 || disk.f_blocks == 0) return;
  const double block = static_cast<double>(disk.f_frsize);
  const double used = static_cast<double>(disk.f_blocks - disk.f_bfree) * block;
  const double available = static_cast<double>(disk.f_bavail) * block;
  metrics.push_back({"disk_usage_percentage", 100 * used / std::max(1.0, used + available)});
  metrics.push_back({"disk_usage_megabytes", used / kMegabyte});
  metrics.push_back({"disk_available_megabytes", available / kMegabyte});
}

}  // namespace

bool system_metrics_wanted() {
  const char* value = std::getenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING");
  const std::string text = in_lower_case(value == nullptr ? "" : value);
  return text == "true" || text == "1";
}

double system_metrics_interval() {
  constexpr double kUsual = 10;
  const char* value = std::getenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL");
  const double seconds = value == nullptr ? kUsual : std::strtod(value, nullptr);
  return seconds > 0 ? seconds : kUsual;
}

SystemMetrics::SystemMetrics(std::string proc) : proc_(std::move(proc)), nvml_(Nvml::open()) {
  before_ = processors();
  at_start_ = network();
}

std::vector<Metric> SystemMetrics::sample() {
  std::vector<Metric> metrics;
  const Processors now = processors();
  if (now.all > before_.all) {
    metrics.push_back({"cpu_utilization_percentage", 100 * (now.busy - before_.busy) / (now.all - before_.all)});
  }
  before_ = now;
  add_memory(metrics);
  add_disk(metrics);
  const Network network_now = network();
  metrics.push_back({"network_receive_megabytes", (network_now.received - at_start_.received) / kMegabyte});
  metrics.push_back({"network_transmit_megabytes", (network_now.sent - at_start_.sent) / kMegabyte});
  add_gpus(metrics);
  return metrics;
}

/// Reads the first line of stat: ticks of user, nice, system, idle, iowait, irq, softirq, steal.
SystemMetrics::Processors SystemMetrics::processors() const {
  std::ifstream file(proc_ + "/stat");
  std::string name;
  file >> name;
  Processors ticks;
  double value = 0;
  for (int i = 0; i < 8 && file >> value; ++i) {
    ticks.all += value;
    const bool idle = i == 3 || i == 4;
    if (!idle) ticks.busy += value;
  }
  return ticks;
}

/// Reads net/dev: after two header lines, "name: bytes and seven other numbers received, bytes sent, …".
SystemMetrics::Network SystemMetrics::network() const {
  std::ifstream file(proc_ + "/net/dev");
  Network sum;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, colon).ends_with("lo")) continue;
    std::istringstream numbers(line.substr(colon + 1));
    double value = 0;
    for (int i = 0; i < 9 && numbers >> value; ++i) {
      if (i == 0) sum.received += value;
      if (i == 8) sum.sent += value;
    }
  }
  return sum;
}

void SystemMetrics::add_memory(std::vector<Metric>& metrics) const {
  std::ifstream file(proc_ + "/meminfo");
  double total = 0, available = 0;
  for (std::string name, unit; file >> name;) {
    double kilobytes = 0;
    if (!(file >> kilobytes)) break;
    std::getline(file, unit);
    if (name == "MemTotal:") total = kilobytes * 1024;
    if (name == "MemAvailable:") available = kilobytes * 1024;
  }
  if (total <= 0) return;
  metrics.push_back({"system_memory_usage_megabytes", (total - available) / kMegabyte});
  metrics.push_back({"system_memory_usage_percentage", 100 * (total - available) / total});
}

void SystemMetrics::add_gpus(std::vector<Metric>& metrics) const {
  if (!nvml_) return;
  const std::vector<GpuReading> gpus = nvml_->read_all();
  for (size_t i = 0; i < gpus.size(); ++i) {
    const GpuReading& gpu = gpus[i];
    const auto add = [&](const char* name, const std::optional<double>& value) {
      if (value) metrics.push_back({fmt::format("gpu_{}_{}", i, name), *value});
    };
    add("utilization_percentage", gpu.utilization);
    if (gpu.memory_used && gpu.memory_total) {
      add("memory_usage_megabytes", *gpu.memory_used / kMegabyte);
      add("memory_usage_percentage", 100 * *gpu.memory_used / std::max(1.0, *gpu.memory_total));
    }
    add("power_usage_watts", gpu.power);
    if (gpu.power && gpu.power_limit) {
      add("power_usage_percentage", 100 * *gpu.power / std::max(1.0, *gpu.power_limit));
    }
  }
}

std::string packed_metrics(const std::string& host, const std::vector<Metric>& metrics) {
  Json values = Json::object();
  for (const Metric& metric : metrics) values[metric.name] = metric.value;
  return Json{{"host", host}, {"values", values}}.dump();
}

std::vector<Metric> system_metrics_of(const std::vector<std::string>& hosts) {
  std::vector<Json> sampled;
  for (const std::string& text : hosts) {
    Json json = text.empty() ? Json() : parse_json(text);
    if (json.is_object() && json.contains("host") && json.contains("values")) sampled.push_back(std::move(json));
  }
  std::vector<Metric> metrics;
  std::set<std::string> names;
  for (const Json& host : sampled) {
    std::string name = host["host"].get<std::string>();
    // Containers may have the same name.
    for (int i = 2; !names.insert(name).second; ++i) name = fmt::format("{}-{}", host["host"].get<std::string>(), i);
    const std::string prefix = sampled.size() > 1 ? "system/" + name + "/" : "system/";
    for (const auto& [metric, value] : host["values"].items()) {
      if (value.is_number()) metrics.push_back({prefix + metric, value.get<double>()});
    }
  }
  return metrics;
}

}  // namespace hone
