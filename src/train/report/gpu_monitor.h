// GpuMonitor samples a GPU's sensors once per second in a thread of its own, so that reading the latest sample is free.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/base/device.h"
#include "core/cuda/nvml.h"

namespace hone {

class GpuMonitor {
 public:
  /// Does nothing on a CPU or without NVML.
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
