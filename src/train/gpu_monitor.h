// GpuMonitor: the last reading of a GPU's sensors, taken once a second beside the run, so that asking costs nothing.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/device.h"
#include "core/nvml.h"

namespace hone {

class GpuMonitor {
 public:
  /// Does nothing for a CPU, or where NVML is not there.
  explicit GpuMonitor(Device device);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  GpuReading latest() const;

 private:
  void watch(const std::string& pci_bus_id);

  std::unique_ptr<Nvml> nvml_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  GpuReading latest_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hone
