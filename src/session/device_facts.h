// What is to be known of a device, whichever kind it is. Memory in bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/device.h"
#include "core/cuda/cuda_device.h"

namespace hone {

/// What could still be allocated: the host's free memory, or what a GPU's driver counts as free.
uint64_t available_memory(Device device);

/// In use now: the largest resident set of this process, or what a GPU's driver counts as used, by whomever.
uint64_t used_memory(Device device);

/// Has used_memory of a CPU count from now on; nothing where the kernel does not allow it, and for a GPU.
void forget_peak_memory(Device device);

/// What a device is chosen for: a plan does not need its memory to be free.
enum class DeviceUse { kWork, kPlan };

/// auto (the first GPU that this program runs on, else the CPU), cpu, cuda or cuda:N. UserError, naming `where`, for
/// another name, for a GPU where there is none (it says why), for a number beyond the last, and for a GPU that this
/// program does not run on (cuda::GpuRefusal).
Device choose_device(const std::string& name, const std::string& where = "device", DeviceUse use = DeviceUse::kWork);

/// Why the CPU was chosen by the name "auto" though there is a GPU, or a driver that is too old: one line, with what to
/// do. "" otherwise.
std::string why_no_gpu_is_used(const std::string& name, Device chosen);

/// Throws choose_device's error for a name that is none, without asking what GPUs there are.
void check_device_name(const std::string& name, const std::string& where = "device");

/// The device of one of `local_size` ranks of a host: as above, each with a GPU of its own where they run on GPUs. A
/// host on which every process sees one GPU has shared them out already. Of several ranks (`size`, on all hosts) none
/// passes over a GPU that it does not run on: UserError.
Device choose_rank_device(const std::string& name, int local_rank, int local_size, int size);

/// Threads of one of `ranks` that may run on the same cores: what is stated; otherwise its share of the cores that this
/// process may run on, which a container or a launcher may have bound it to.
int rank_threads(int stated, int ranks);

/// The processor's or the GPU's name.
std::string device_name(Device device);

/// "cpu (…)" or "cuda:0 (NVIDIA H200)"
std::string device_text(Device device);

// Memory of this process and of the machine, in bytes.

/// Free memory and caches the system would give up (MemAvailable), within the limits of the control group. Some virtual
/// machines show a small MemTotal at first, which grows as memory is used: what their memory blocks have beyond it
/// counts as free, too. `root`: where /proc and /sys are.
uint64_t available_host_memory(const std::filesystem::path& root = "/");
/// What could be allocated and used: what the control group still allows where it has a limit; else as above.
uint64_t allocatable_host_memory(const std::filesystem::path& root = "/");
/// Resident set of this process now, and its largest since the start.
uint64_t resident_bytes();
uint64_t peak_resident_bytes();

}  // namespace hone

namespace hone::cuda {

// On which GPUs a build runs.

/// Whether code compiled for `architectures` runs on a GPU of compute capability major.minor. They are written as nvcc
/// does, separated by white space, "," or ";": machine code "80" runs on 8.0 and later GPUs of its major version,
/// "90a" on 9.0 alone, and "compute_80" (PTX) on 8.0 and everything later. Others are not counted.
bool has_code_for(std::string_view architectures, int major, int minor);

/// Why a program does not run on a GPU, and what to do about it, each without a full stop.
struct GpuRefusal {
  std::string reason, remedy;
};

/// The GPU has no bfloat16 (V100, T4), or a build for `architectures` no code for it.
std::optional<GpuRefusal> refusal_by_code(int index, const DeviceInfo& gpu, std::string_view architectures);
/// Too little of the memory is free for any work.
std::optional<GpuRefusal> refusal_by_memory(int index, const DeviceInfo& gpu, const MemoryCount& memory);

}  // namespace hone::cuda
