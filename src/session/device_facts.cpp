#include "session/device_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <vector>

#include "core/cpu_features.h"
#include "core/cuda_device.h"
#include "core/error.h"
#include "core/numa.h"

namespace hone::cuda {
namespace {

bool runs_on(std::string_view architecture, int capability) {
  constexpr std::string_view kPtx = "compute_";
  const bool ptx = architecture.starts_with(kPtx);
  if (ptx) architecture.remove_prefix(kPtx.size());
  int compiled = 0;
  const auto [end, error] = std::from_chars(architecture.data(), architecture.data() + architecture.size(), compiled);
  if (error != std::errc()) return false;
  const std::string_view suffix(end, static_cast<size_t>(architecture.data() + architecture.size() - end));
  if (suffix == "a") return capability == compiled;
  if (!suffix.empty()) return false;
  return capability >= compiled && (ptx || capability / 10 == compiled / 10);
}

}  // namespace

bool has_code_for(std::string_view architectures, int major, int minor) {
  constexpr std::string_view kSeparators = " ,;";
  while (true) {
    const size_t begin = architectures.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) return false;
    architectures.remove_prefix(begin);
    const std::string_view one = architectures.substr(0, architectures.find_first_of(kSeparators));
    if (runs_on(one, 10 * major + minor)) return true;
    architectures.remove_prefix(one.size());
  }
}

}  // namespace hone::cuda

namespace hone {
namespace {

/// A "Name:   123 kB" line of a /proc file, in bytes; 0 if it has none.
uint64_t kilobytes_field(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

/// What the control group still allows (version 2); none without a limit.
std::optional<uint64_t> group_allowance() {
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  uint64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return std::nullopt;
  return limit > used ? limit - used : 0;
}

}  // namespace

uint64_t available_host_memory() {
  const uint64_t available = kilobytes_field("/proc/meminfo", "MemAvailable");
  return std::min(available, group_allowance().value_or(available));
}
uint64_t allocatable_host_memory() {
  const std::optional<uint64_t> allowance = group_allowance();
  return allowance ? *allowance : available_host_memory();
}
uint64_t resident_bytes() { return kilobytes_field("/proc/self/status", "VmRSS"); }
uint64_t peak_resident_bytes() { return kilobytes_field("/proc/self/status", "VmHWM"); }

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

namespace {

/// bfloat16 products on tensor cores, which all GPU kernels of training need, begin here: V100 and T4 have none.
constexpr int kLeastMajor = 8;

bool has_code_for_gpu(int index) {
  const cuda::DeviceInfo info = cuda::device_info(index);
  return info.major >= kLeastMajor && cuda::has_code_for(cuda::built_architectures(), info.major, info.minor);
}

/// "this build has no code for cuda:0 (NVIDIA A100, compute capability 8.0); it has code for 90a"
std::string without_code(int index) {
  const cuda::DeviceInfo info = cuda::device_info(index);
  if (info.major < kLeastMajor) {
    return fmt::format("cuda:{} ({}, compute capability {}.{}) has no bfloat16 arithmetic, which Hone needs", index,
                       info.name, info.major, info.minor);
  }
  return fmt::format("this build has no code for cuda:{} ({}, compute capability {}.{}): it has code for {}", index,
                     info.name, info.major, info.minor, cuda::built_architectures());
}

std::string build_with_code(int index) {
  const cuda::DeviceInfo info = cuda::device_info(index);
  if (info.major < kLeastMajor) return "use a GPU of compute capability 8.0 or later (A100, RTX 30 series)";
  return fmt::format("build Hone with cmake -DHONE_CUDA_ARCHITECTURES={}{}{}", info.major, info.minor,
                     info.major == 9 ? "a" : "");  // Hopper's own instructions
}

/// UserError unless this build runs on the GPU.
void require_code(int index, const std::string& where) {
  if (!has_code_for_gpu(index))
    throw UserError(without_code(index), where, build_with_code(index) + ", or use the CPU");
}

/// The first GPU that this build has code for, or -1.
int first_usable_gpu() {
  const int count = cuda::device_count();
  for (int index = 0; index < count; ++index) {
    if (has_code_for_gpu(index)) return index;
  }
  return -1;
}

}  // namespace

Device choose_device(const std::string& name, const std::string& where) {
  check_device_name(name, where);
  if (name == "cpu") return {};
  if (name == "auto") {
    const int usable = first_usable_gpu();
    return usable >= 0 ? Device{DeviceKind::kCuda, usable} : Device{};
  }
  const int count = cuda::device_count();
  const int index = gpu_index(name);
  if (count == 0) {
    throw UserError("there is no GPU to run on: " + cuda::why_no_device(), where,
                    "use the device cpu; hone env shows what this program and this machine have");
  }
  if (index >= count) {
    throw UserError(fmt::format("there is no GPU {}: the last one is cuda:{}", name, count - 1), where,
                    "hone env lists them");
  }
  require_code(index, where);
  return {DeviceKind::kCuda, index};
}

std::string why_no_gpu_is_used() {
  if (cuda::device_count() == 0 || first_usable_gpu() >= 0) return "";
  return without_code(0) + "; the run uses the CPU. To use the GPU, " + build_with_code(0);
}

Device choose_rank_device(const std::string& name, int local_rank, int local_size, int size) {
  Device device = choose_device(name);
  const int count = cuda::device_count();
  if (size > 1 && name == "auto" && count > 0) require_code(std::min(local_rank, count - 1), "device");
  if (device.kind == DeviceKind::kCpu || local_size == 1 || count == 1) return device;
  if (name.starts_with("cuda:")) {
    throw UserError(fmt::format("{} is one GPU, but this host has {} ranks", name, local_size), "device",
                    "write device: cuda, or auto: each rank takes a GPU of its own");
  }
  if (local_rank >= count) {
    throw UserError(fmt::format("this host has {} ranks, but {} GPUs", local_size, count), "device",
                    "start one rank for each GPU");
  }
  require_code(local_rank, "device");
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
