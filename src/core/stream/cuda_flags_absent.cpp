// The build without CUDA: these functions are never called.
#include "core/stream/cuda_flags.h"

namespace hone::cuda {

bool has_flags(int) { return false; }
void write_flag(void*, std::byte*, uint32_t) {}
void await_flag(void*, const std::byte*, uint32_t) {}
void await_flags(void*, const std::byte*, int, int, uint32_t) {}
void set_flags(int, std::byte*, size_t, uint32_t) {}

}  // namespace hone::cuda
