// The system metrics of MLflow's client: CPUs, memory, disk, network and GPUs, with the names of MLflow's system
// metrics page.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/cuda/nvml.h"
#include "report/metrics.h"

namespace hone {

/// Whether MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING is true or 1, ignoring case.
bool system_metrics_wanted();

/// Seconds between samples: MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL, else MLflow's 10.
double system_metrics_interval();

/// The machine of this process.
class SystemMetrics {
 public:
  /// `proc`: the folder of the kernel's process information.
  explicit SystemMetrics(std::string proc = "/proc");

  /// Metrics without a prefix: cpu_utilization_percentage, system_memory_usage_megabytes and _percentage,
  /// disk_usage_percentage, disk_usage_megabytes, disk_available_megabytes, network_receive_megabytes and
  /// network_transmit_megabytes (since this object was created), and for each GPU gpu_N_utilization_percentage,
  /// gpu_N_memory_usage_megabytes and _percentage, gpu_N_power_usage_watts and _percentage. CPU utilization is that
  /// since the last call. Omits values that cannot be read. Megabytes are 10^6 bytes, as in MLflow.
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

/// The sample of one host as text, for the exchange between ranks.
std::string packed_metrics(const std::string& host, const std::vector<Metric>& metrics);

/// The samples of all hosts, from the packed text of each or "" (another rank of the host has sampled). Names are
/// system/NAME, with several hosts system/HOST/NAME.
std::vector<Metric> system_metrics_of(const std::vector<std::string>& hosts);

}  // namespace hone
