#include "core/nvml.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace hone {

namespace {

// From nvml.h, whose interface is stable: https://docs.nvidia.com/deploy/nvml-api
using Status = int;
using DeviceHandle = void*;
constexpr Status kSuccess = 0;
constexpr unsigned kTemperatureOfGpu = 0;
struct Utilization {
  unsigned gpu, memory;
};

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  Status (*driver_version)(char*, unsigned) = nullptr;
  Status (*device_by_bus)(const char*, DeviceHandle*) = nullptr;
  Status (*utilization)(DeviceHandle, Utilization*) = nullptr;
  Status (*power)(DeviceHandle, unsigned*) = nullptr;
  Status (*temperature)(DeviceHandle, unsigned, unsigned*) = nullptr;
  bool started = false;

  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }

  bool start() {
    handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    const bool complete = find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
                          find(driver_version, "nvmlSystemGetDriverVersion") &&
                          find(device_by_bus, "nvmlDeviceGetHandleByPciBusId_v2") &&
                          find(utilization, "nvmlDeviceGetUtilizationRates") &&
                          find(power, "nvmlDeviceGetPowerUsage") && find(temperature, "nvmlDeviceGetTemperature");
    started = complete && init() == kSuccess;
    return started;
  }

  ~Library() {
    if (started) shutdown();
    if (handle != nullptr) dlclose(handle);
  }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

std::unique_ptr<Nvml> Nvml::open() {
  auto library = std::make_unique<Library>();
  if (!library->start()) return nullptr;
  return std::unique_ptr<Nvml>(new Nvml(std::move(library)));
}

std::string Nvml::driver_version() const {
  std::array<char, 96> text{};
  return library_->driver_version(text.data(), text.size()) == kSuccess ? text.data() : "";
}

GpuReading Nvml::read(const std::string& pci_bus_id) const {
  GpuReading reading;
  DeviceHandle device = nullptr;
  if (library_->device_by_bus(pci_bus_id.c_str(), &device) != kSuccess) return reading;
  Utilization utilization{};
  if (library_->utilization(device, &utilization) == kSuccess) reading.utilization = utilization.gpu;
  unsigned value = 0;
  if (library_->power(device, &value) == kSuccess) reading.power = static_cast<double>(value) / 1000;
  if (library_->temperature(device, kTemperatureOfGpu, &value) == kSuccess) reading.temperature = value;
  return reading;
}

}  // namespace hone
