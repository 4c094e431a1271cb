// What NVIDIA's management library knows of a GPU: how busy it is, its power and temperature. The library comes with
// the driver and is opened when it is there; no header of it is needed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hone {

/// A value that the GPU does not tell is not set.
struct GpuReading {
  std::optional<double> utilization;  ///< share of the last second or less in which a kernel ran, in percent
  std::optional<double> power;        ///< watts
  std::optional<double> temperature;  ///< degrees Celsius
  std::optional<double> memory_used, memory_total;  ///< bytes, of all processes
  std::optional<double> power_limit;                ///< watts
};

class Nvml {
 public:
  /// Null where the library is not installed or does not start.
  static std::unique_ptr<Nvml> open();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string driver_version() const;
  /// Of the GPU on this PCI bus (cuda::DeviceInfo::pci_bus_id). Takes about a millisecond.
  GpuReading read(const std::string& pci_bus_id) const;
  /// Of every GPU of the machine, visible to this process or not.
  std::vector<GpuReading> read_all() const;

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);
  GpuReading read_device(void* device) const;

  std::unique_ptr<Library> library_;
};

}  // namespace hone
