#include "core/cuda/nvml.h"

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

}  // namespace

struct Nvml::Library {
  struct Utilization {
    unsigned gpu, memory;
  };
  struct Memory {
    unsigned long long total, free, used;
  };

  void* handle = nullptr;
  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  Status (*driver_version)(char*, unsigned) = nullptr;
  Status (*device_by_bus)(const char*, DeviceHandle*) = nullptr;
  Status (*utilization)(DeviceHandle, Utilization*) = nullptr;
  Status (*power)(DeviceHandle, unsigned*) = nullptr;
  Status (*temperature)(DeviceHandle, unsigned, unsigned*) = nullptr;
  Status (*memory)(DeviceHandle, Memory*) = nullptr;
  Status (*power_limit)(DeviceHandle, unsigned*) = nullptr;
  Status (*device_count)(unsigned*) = nullptr;
  Status (*device_by_index)(unsigned, DeviceHandle*) = nullptr;
  bool started = false;

  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }

  bool start() {
    handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    const bool complete =
        find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
        find(driver_version, "nvmlSystemGetDriverVersion") && find(device_by_bus, "nvmlDeviceGetHandleByPciBusId_v2") &&
        find(utilization, "nvmlDeviceGetUtilizationRates") && find(power, "nvmlDeviceGetPowerUsage") &&
        find(temperature, "nvmlDeviceGetTemperature") && find(memory, "nvmlDeviceGetMemoryInfo") &&
        find(power_limit, "nvmlDeviceGetEnforcedPowerLimit") && find(device_count, "nvmlDeviceGetCount_v2") &&
        find(device_by_index, "nvmlDeviceGetHandleByIndex_v2");
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
  DeviceHandle device = nullptr;
  return library_->device_by_bus(pci_bus_id.c_str(), &device) == kSuccess ? read_device(device) : GpuReading();
}

std::vector<GpuReading> Nvml::read_all() const {
  std::vector<GpuReading> all;
  unsigned count = 0;
  if (library_->device_count(&count) != kSuccess) return all;
  for (unsigned i = 0; i < count; ++i) {
    DeviceHandle device = nullptr;
    all.push_back(library_->device_by_index(i, &device) == kSuccess ? read_device(device) : GpuReading());
  }
  return all;
}

GpuReading Nvml::read_device(void* device) const {
  GpuReading reading;
  Library::Utilization utilization{};
  if (library_->utilization(device, &utilization) == kSuccess) reading.utilization = utilization.gpu;
  unsigned value = 0;
  if (library_->power(device, &value) == kSuccess) reading.power = static_cast<double>(value) / 1000;
  if (library_->temperature(device, kTemperatureOfGpu, &value) == kSuccess) reading.temperature = value;
  if (library_->power_limit(device, &value) == kSuccess) reading.power_limit = static_cast<double>(value) / 1000;
  Library::Memory memory{};
  if (library_->memory(device, &memory) == kSuccess) {
    reading.memory_used = static_cast<double>(memory.used);
    reading.memory_total = static_cast<double>(memory.total);
  }
  return reading;
}

}  // namespace hone
