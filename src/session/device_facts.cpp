#include "session/device_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/cpu/cpu_features.h"
#include "core/cpu/numa.h"
#include "core/cuda/cuda_device.h"

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

std::optional<GpuRefusal> refusal_by_code(int index, const DeviceInfo& gpu, std::string_view architectures) {
  // Products of bfloat16 on tensor cores, which all kernels of training need, begin with 8.0.
  constexpr int kLeastMajor = 8;
  const std::string name = fmt::format("cuda:{} ({}, compute capability {}.{})", index, gpu.name, gpu.major, gpu.minor);
  if (gpu.major < kLeastMajor) {
    return GpuRefusal{name + " has no bfloat16 arithmetic, which Hone needs",
                      "take one of compute capability 8.0 or later (A100, RTX 30 series)"};
  }
  if (has_code_for(architectures, gpu.major, gpu.minor)) return std::nullopt;
  return GpuRefusal{fmt::format("this build has no code for {}: it has code for {}", name, architectures),
                    fmt::format("build Hone with cmake -DHONE_CUDA_ARCHITECTURES={}{}{}", gpu.major, gpu.minor,
                                gpu.major == 9 ? "a" : "")};  // Hopper's own instructions
}

std::optional<GpuRefusal> refusal_by_memory(int index, const DeviceInfo& gpu, const MemoryCount& memory) {
  // CUDA and its libraries take 0.7 GB (train/step/library_memory.h), a part of them before the count.
  constexpr size_t kLeastFree = size_t{1} << 30;
  if (memory.free >= kLeastFree) return std::nullopt;
  return GpuRefusal{
      fmt::format("cuda:{} ({}) has {:.2f} of {:.2f} GB of memory free, too little to begin with", index, gpu.name,
                  static_cast<double>(memory.free) / 1e9, static_cast<double>(memory.total) / 1e9),
      "end what else uses it; nvidia-smi lists it"};
}

}  // namespace hone::cuda

namespace hone {
namespace {

namespace fs = std::filesystem;

/// A "Name:   123 kB" line of a /proc file, in bytes; 0 if it has none.
uint64_t kilobytes_field(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

std::optional<uint64_t> number_in(const fs::path& path, int base = 10) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number, base);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(number) : std::nullopt;
}

/// A "name 123" line of memory.stat; 0 if it has none.
uint64_t statistic(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  while (file >> word >> value) {
    if (word == name) return value;
  }
  return 0;
}

/// The files of a version of control groups, and the mount of its memory controller.
struct GroupFiles {
  const char *mount, *limit, *used, *reclaimable;
};
constexpr GroupFiles kVersion2{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};

/// What a group still allows; none without a limit. The kernel drops unused pages of files before it refuses memory.
std::optional<uint64_t> allowance_of(const fs::path& folder, const GroupFiles& files) {
  constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // version 1 writes a number for it
  const std::optional<uint64_t> limit = number_in(folder / files.limit), used = number_in(folder / files.used);
  if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
  const uint64_t held = *used - std::min(*used, statistic(folder / "memory.stat", files.reclaimable));
  return *limit > held ? *limit - held : 0;
}

/// The least that this process's control group and those around it still allow; none without a limit.
std::optional<uint64_t> group_allowance(const fs::path& root) {
  std::optional<uint64_t> least;
  std::ifstream groups(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {  // 4:memory:/path, or of version 2 0::/path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",memory,") == std::string::npos) continue;
    const GroupFiles& files = unified ? kVersion2 : kVersion1;
    // In a container the path may be the host's, and the mount the group itself.
    for (fs::path group = line.substr(second + 1);; group = group.parent_path()) {
      const std::optional<uint64_t> allowance = allowance_of(root / files.mount / group.relative_path(), files);
      if (allowance) least = std::min(*allowance, least.value_or(*allowance));
      if (!group.has_relative_path()) break;
    }
  }
  return least;
}

/// Bytes of the memory blocks that are online; 0 where the system does not list them.
uint64_t online_memory(const fs::path& root) {
  const fs::path folder = root / "sys/devices/system/memory";
  const uint64_t block = number_in(folder / "block_size_bytes", 16).value_or(0);
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with("memory"))
      bytes += number_in(entry.path() / "online") == uint64_t{1} ? block : 0;
  }
  return bytes;
}

/// What MemTotal is expected to gain: elsewhere it lacks a few percent of the memory blocks, which the kernel keeps.
uint64_t expected_growth(const fs::path& root) {
  const uint64_t total = kilobytes_field(root / "proc/meminfo", "MemTotal"), online = online_memory(root);
  const uint64_t usable = online / 32 * 31;
  return total > 0 && total < online / 4 * 3 ? usable - total : 0;
}

}  // namespace

uint64_t available_host_memory(const fs::path& root) {
  const uint64_t available = kilobytes_field(root / "proc/meminfo", "MemAvailable") + expected_growth(root);
  return std::min(available, group_allowance(root).value_or(available));
}
uint64_t allocatable_host_memory(const fs::path& root) {
  const std::optional<uint64_t> allowance = group_allowance(root);
  return allowance ? *allowance : available_host_memory(root);
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

void forget_peak_memory(Device device) {
  if (device.kind != DeviceKind::kCpu) return;
  const int file = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  // Linux: "5" sets the peak to what is resident now. A kernel without it leaves the peak, which is only too high.
  [[maybe_unused]] const ssize_t written = ::write(file, "5", 1);
  ::close(file);
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

/// Why this program does not run on a GPU that is there; nothing if it does. Reads its memory last, since that takes
/// some.
std::optional<cuda::GpuRefusal> refusal_of(int index, DeviceUse use = DeviceUse::kWork) {
  const cuda::DeviceInfo gpu = cuda::device_info(index);
  if (auto refusal = cuda::refusal_by_code(index, gpu, cuda::built_architectures())) return refusal;
  if (use == DeviceUse::kPlan) return std::nullopt;
  if (const cuda::ProductsLibrary products = cuda::products_library(); !products.problem.empty())
    return cuda::GpuRefusal{products.problem, products.fix};
  try {
    return cuda::refusal_by_memory(index, gpu, cuda::memory_count(index));
  } catch (const Error& error) {  // as of a GPU that is full, or that another process has for itself
    return cuda::GpuRefusal{fmt::format("cuda:{} ({}) cannot be used: {}", index, gpu.name, error.message()),
                            "end what else uses it; nvidia-smi lists it"};
  }
}

void require_usable(int index, const std::string& where, DeviceUse use = DeviceUse::kWork) {
  if (const auto refusal = refusal_of(index, use)) {
    throw UserError(refusal->reason, where, refusal->remedy + ", or use the CPU");
  }
}

/// The first GPU that this program runs on, or -1.
int first_usable_gpu(DeviceUse use) {
  const int count = cuda::device_count();
  for (int index = 0; index < count; ++index) {
    if (!refusal_of(index, use)) return index;
  }
  return -1;
}

}  // namespace

Device choose_device(const std::string& name, const std::string& where, DeviceUse use) {
  check_device_name(name, where);
  if (name == "cpu") return {};
  if (name == "auto") {
    const int usable = first_usable_gpu(use);
    return usable >= 0 ? Device{DeviceKind::kCuda, usable} : Device{};
  }
  const int count = cuda::device_count();
  const int index = gpu_index(name);
  if (count == 0) {
    const std::string newer = cuda::driver_is_too_old() ? cuda::driver_fix(cuda::versions().runtime) + "; or " : "";
    throw UserError("there is no GPU to run on: " + cuda::why_no_device(), where,
                    newer + "use the device cpu; hone env shows what this program and this machine have");
  }
  if (index >= count) {
    throw UserError(fmt::format("there is no GPU {}: the last one is cuda:{}", name, count - 1), where,
                    "hone env lists them");
  }
  require_usable(index, where, use);
  return {DeviceKind::kCuda, index};
}

std::string why_no_gpu_is_used(const std::string& name, Device chosen) {
  if (name != "auto" || chosen.kind != DeviceKind::kCpu) return "";
  std::optional<cuda::GpuRefusal> refusal;
  if (cuda::device_count() > 0) {
    refusal = refusal_of(0);
  } else if (cuda::driver_is_too_old()) {
    refusal = cuda::GpuRefusal{cuda::why_no_device(), cuda::driver_fix(cuda::versions().runtime)};
  }
  return refusal ? refusal->reason + "; this runs on the CPU. To use the GPU, " + refusal->remedy : "";
}

Device choose_rank_device(const std::string& name, int local_rank, int local_size, int size) {
  check_device_name(name);
  const int count = name == "cpu" ? 0 : cuda::device_count();
  if (local_size == 1 || count <= 1) {
    if (size > 1 && name == "auto" && count > 0) return choose_device("cuda");
    return choose_device(name);
  }
  if (name.starts_with("cuda:")) {
    throw UserError(fmt::format("{} is one GPU, but this host has {} ranks", name, local_size), "device",
                    "write device: cuda, or auto: each rank takes a GPU of its own");
  }
  if (local_rank >= count) {
    throw UserError(fmt::format("this host has {} ranks, but {} GPUs", local_size, count), "device",
                    "start one rank for each GPU");
  }
  require_usable(local_rank, "device");
  return {DeviceKind::kCuda, local_rank};
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
