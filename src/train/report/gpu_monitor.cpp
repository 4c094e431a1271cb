#include "train/report/gpu_monitor.h"

#include <chrono>

#include "core/cuda/cuda_device.h"

namespace hone {

GpuMonitor::GpuMonitor(Device device) {
  if (device.kind != DeviceKind::kCuda) return;
  nvml_ = Nvml::open();
  if (!nvml_) return;
  thread_ = std::thread([this, bus = cuda::device_info(device.index).pci_bus_id] { watch(bus); });
}

GpuMonitor::~GpuMonitor() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

GpuReading GpuMonitor::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

void GpuMonitor::watch(const std::string& pci_bus_id) {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const GpuReading reading = nvml_->read(pci_bus_id);
    lock.lock();
    latest_ = reading;
    wake_.wait_for(lock, std::chrono::seconds(1), [&] { return stopping_; });
  }
}

}  // namespace hone
