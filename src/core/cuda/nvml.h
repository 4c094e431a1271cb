// Nvml: utilization, power and temperature of GPUs from NVIDIA's management library. The library is part of the driver
// and is loaded if it exists; its header is not needed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hone {

/// Values that the GPU does not report are unset.
struct GpuReading {
  std::optional<double> utilization;                ///< percentage of the last second or less in which a kernel ran
  std::optional<double> power;                      ///< watts
  std::optional<double> temperature;                ///< degrees Celsius
  std::optional<double> memory_used, memory_total;  ///< bytes, of all processes
  std::optional<double> power_limit;                ///< watts
};

class Nvml {
 public:
  /// Returns null if the library is not installed or does not start.
  static std::unique_ptr<Nvml> open();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string driver_version() const;
  /// Reads the GPU with this PCI bus id (cuda::DeviceInfo::pci_bus_id). Takes about a millisecond.
  GpuReading read(const std::string& pci_bus_id) const;
  /// Reads every GPU of the machine, visible to this process or not.
  std::vector<GpuReading> read_all() const;

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);
  GpuReading read_device(void* device) const;

  std::unique_ptr<Library> library_;
};

}  // namespace hone
