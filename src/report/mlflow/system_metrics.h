// What MLflow's client tells of a machine while a run goes on: processors, memory, disk, network and GPUs, under the
// names that its page for system metrics reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/nvml.h"
#include "report/metrics.h"

namespace hone {

/// MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING is true or 1, in any case.
bool system_metrics_wanted();

/// Seconds from one sample to the next: MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL, else MLflow's 10.
double system_metrics_interval();

/// The machine that this process runs on.
class SystemMetrics {
 public:
  /// `proc`: where the kernel tells of itself.
  explicit SystemMetrics(std::string proc = "/proc");

  /// Without a prefix: cpu_utilization_percentage, system_memory_usage_megabytes and _percentage,
  /// disk_usage_percentage, disk_usage_megabytes, disk_available_megabytes, network_receive_megabytes and
  /// network_transmit_megabytes (since this object was made), and of each GPU gpu_N_utilization_percentage,
  /// gpu_N_memory_usage_megabytes and _percentage, gpu_N_power_usage_watts and _percentage. Utilisation of processors
  /// is that since the last call. What cannot be read is left out. Megabytes are 10^6 bytes, as in MLflow.
  std::vector<Metric> sample();

 private:
  struct Processors {
    double busy = 0, all = 0;
  };
  struct Network {
    double received = 0, sent = 0;
  };
  Processors processors() const;
  Network network() const;
  void add_memory(std::vector<Metric>& metrics) const;
  void add_gpus(std::vector<Metric>& metrics) const;

  std::string proc_;
  std::unique_ptr<Nvml> nvml_;
  Processors before_;
  Network at_start_;
};

/// What one host has sampled, as a text that passes between ranks, and back. Of text that is none: nothing.
std::string packed_metrics(const std::string& host, const std::vector<Metric>& metrics);

/// The samples of all hosts, of each its packed text or "" (another rank of a host that has sampled): names are
/// system/NAME, with several hosts system/HOST/NAME.
std::vector<Metric> system_metrics_of(const std::vector<std::string>& hosts);

}  // namespace hone
