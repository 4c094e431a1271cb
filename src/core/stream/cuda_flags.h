// Flags that CUDA streams write and wait for: the CUDA half of core/stream/flags.h. Includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hone::cuda {

bool has_flags(int device);
/// `stream` is a cudaStream_t.
void write_flag(void* stream, std::byte* flag, uint32_t value);
void await_flag(void* stream, const std::byte* flag, uint32_t value);
void await_flags(void* stream, const std::byte* first, int count, int except, uint32_t value);
void set_flags(int device, std::byte* first, size_t count, uint32_t value);

}  // namespace hone::cuda
