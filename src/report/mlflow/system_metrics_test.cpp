#include "report/mlflow/system_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "report/folder_testing.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::optional<double> value_of(const std::vector<Metric>& metrics, const std::string& name) {
  for (const Metric& metric : metrics) {
    if (metric.name == name) return metric.value;
  }
  return std::nullopt;
}

class Proc {
 public:
  Proc() {
    std::filesystem::create_directories(path() + "/net");
    write("/meminfo", "MemTotal:       1000000 kB\nMemFree:  100 kB\nMemAvailable:    250000 kB\n");
    processors(100, 900);
    network(1'000'000, 2'000'000);
  }
  std::string path() const { return folder_.path() + "/proc"; }
  void processors(int busy, int idle) const {
    write("/stat", "cpu  " + std::to_string(busy) + " 0 0 " + std::to_string(idle) + " 0 0 0 0 0 0\ncpu0 1 1 1 1\n");
  }
  void network(int64_t received, int64_t sent) const {
    write("/net/dev",
          "Inter-|   Receive  | Transmit\n face |bytes packets|bytes\n    lo: 77 1 0 0 0 0 0 0 77 1\n  eth0: " +
              std::to_string(received) + " 9 0 0 0 0 0 0 " + std::to_string(sent) + " 8 0\n");
  }

 private:
  void write(const std::string& name, const std::string& text) const { std::ofstream(path() + name) << text; }
  TestFolder folder_;
};

TEST(SystemMetrics, TellsOfProcessorsMemoryDiskAndNetwork) {
  const Proc proc;
  SystemMetrics host(proc.path());
  EXPECT_FALSE(value_of(host.sample(), "cpu_utilization_percentage")) << "no time has passed";
  proc.processors(130, 970);  // 30 of 100 ticks
  proc.network(6'000'000, 2'500'000);
  const std::vector<Metric> metrics = host.sample();
  EXPECT_DOUBLE_EQ(value_of(metrics, "cpu_utilization_percentage").value(), 30);
  EXPECT_DOUBLE_EQ(value_of(metrics, "system_memory_usage_percentage").value(), 75);
  EXPECT_DOUBLE_EQ(value_of(metrics, "system_memory_usage_megabytes").value(), 768);
  EXPECT_DOUBLE_EQ(value_of(metrics, "network_receive_megabytes").value(), 5);
  EXPECT_DOUBLE_EQ(value_of(metrics, "network_transmit_megabytes").value(), 0.5);
  EXPECT_GT(value_of(metrics, "disk_usage_megabytes").value(), 0);
}

TEST(SystemMetrics, LeavesOutWhatCannotBeRead) {
  SystemMetrics host("/nowhere");
  EXPECT_FALSE(value_of(host.sample(), "cpu_utilization_percentage"));
  EXPECT_FALSE(value_of(host.sample(), "system_memory_usage_percentage"));
}

TEST(SystemMetrics, EveryHostIsNamedWhereThereAreSeveral) {
  const auto names = [](const std::vector<std::string>& hosts) {
    std::vector<std::string> list;
    for (const Metric& metric : system_metrics_of(hosts)) list.push_back(metric.name);
    return list;
  };
  const std::string a = packed_metrics("a", {{"x", 1.5}}), b = packed_metrics("b", {{"x", 2}});
  EXPECT_THAT(names({a, ""}), ElementsAre("system/x"));
  EXPECT_THAT(names({a, "", b, ""}), ElementsAre("system/a/x", "system/b/x"));
  EXPECT_THAT(names({a, a}), ElementsAre("system/a/x", "system/a-2/x"));
  EXPECT_THAT(names({"", "{"}), IsEmpty());
  EXPECT_EQ(system_metrics_of({a}).front().value, 1.5);
}

TEST(SystemMetrics, AreAskedForByMlflowsOwnVariables) {
  const char* name = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING";
  for (const auto& [text, wanted] :
       {std::pair{"true", true}, {"True", true}, {"1", true}, {"false", false}, {"", false}}) {
    setenv(name, text, 1);
    EXPECT_EQ(system_metrics_wanted(), wanted) << text;
  }
  unsetenv(name);
  EXPECT_FALSE(system_metrics_wanted());
  EXPECT_EQ(system_metrics_interval(), 10);
  setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.5", 1);
  EXPECT_EQ(system_metrics_interval(), 0.5);
  unsetenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL");
}

}  // namespace
}  // namespace hone
