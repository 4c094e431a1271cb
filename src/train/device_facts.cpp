#include "train/device_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/cpu_features.h"
#include "core/cuda_device.h"
#include "core/error.h"
#include "core/numa.h"
#include "train/host_memory.h"

namespace hone {

uint64_t available_memory(Device device) {
  return device.kind == DeviceKind::kCpu ? available_host_memory() : cuda::memory_count(device.index).free;
}

uint64_t used_memory(Device device) {
  if (device.kind == DeviceKind::kCpu) return peak_resident_bytes();
  const cuda::MemoryCount memory = cuda::memory_count(device.index);
  return memory.total - memory.free;
}

namespace {

/// The N of cuda:N, 0 of cuda, -1 of anything else.
int gpu_index(const std::string& name) {
  if (name == "cuda") return 0;
  const std::string prefix = "cuda:", number = name.substr(std::min(name.size(), prefix.size()));
  constexpr size_t kMostDigits = 3;
  if (!name.starts_with(prefix) || number.empty() || number.size() > kMostDigits) return -1;
  const bool digits = std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  return digits ? std::stoi(number) : -1;
}

}  // namespace

void check_device_name(const std::string& name, const std::string& where) {
  const std::vector<std::string> names = {"auto", "cpu", "cuda"};
  if (std::find(names.begin(), names.end(), name) != names.end() || gpu_index(name) >= 0) return;
  throw UserError(fmt::format("'{}' is not a device.{}", name, did_you_mean(name, names)), where,
                  "use auto, cpu, cuda or cuda:N");
}

Device choose_device(const std::string& name, const std::string& where) {
  check_device_name(name, where);
  if (name == "cpu") return {};
  const int count = cuda::device_count();
  if (name == "auto") return count > 0 ? Device{DeviceKind::kCuda, 0} : Device{};
  const int index = gpu_index(name);
  if (count == 0) {
    throw UserError("there is no GPU to run on: " + cuda::why_no_device(), where,
                    "use the device cpu; hone env shows what this program and this machine have");
  }
  if (index >= count) {
    throw UserError(fmt::format("there is no GPU {}: the last one is cuda:{}", name, count - 1), where,
                    "hone env lists them");
  }
  return {DeviceKind::kCuda, index};
}

Device choose_rank_device(const std::string& name, int local_rank, int local_size) {
  Device device = choose_device(name);
  const int count = device.kind == DeviceKind::kCuda ? cuda::device_count() : 0;
  if (local_size == 1 || count == 0 || count == 1) return device;
  if (name.starts_with("cuda:")) {
    throw UserError(fmt::format("{} is one GPU, but this host has {} ranks", name, local_size), "device",
                    "write device: cuda, or auto: each rank takes a GPU of its own");
  }
  if (local_rank >= count) {
    throw UserError(fmt::format("this host has {} ranks, but {} GPUs", local_size, count), "device",
                    "start one rank for each GPU");
  }
  device.index = local_rank;
  return device;
}

int rank_threads(int stated, int ranks) {
  if (stated > 0) return stated;
  return std::max(1, usable_cores() / ranks);
}

std::string device_text(Device device) {
  const std::string kind = device.kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", device.index);
  return fmt::format("{} ({})", kind, device_name(device));
}

std::string device_name(Device device) {
  return device.kind == DeviceKind::kCpu ? cpu_name() : cuda::device_info(device.index).name;
}

}  // namespace hone
