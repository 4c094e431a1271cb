// Flags: numbers that streams write and wait for. They order the work of different devices of a host, also of different
// processes, without the host: a flag is in the mapped memory (core/memory/mapped_memory.h) of the device that waits
// for it, and another device writes it.
//
// Flags count. A number has been reached once the flag is it or a later one; counters may wrap around.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/stream/stream.h"

namespace hone {

/// Bytes from a flag to the next, so that devices do not write the same line.
constexpr size_t kFlagBytes = 128;

/// Whether the device's streams can write and wait for flags.
bool has_flags(Device device);
/// Queues writing `value`. A device that sees it also sees all that earlier work of the stream has written.
void write_flag(Stream& stream, std::byte* flag, uint32_t value);
/// Work queued later on `stream` runs once `value` has been reached. On a GPU this needs no multiprocessor, but a flag
/// that is late is noticed only some 200 us after it has been written (CUDA's stream memory operations, on an H200).
void await_flag(Stream& stream, const std::byte* flag, uint32_t value);
/// The same for `count` of them, one after another, but number `except`. On a GPU a kernel of one warp polls them: they
/// are noticed within microseconds, once the work before leaves it a multiprocessor.
void await_flags(Stream& stream, const std::byte* first, int count, int except, uint32_t value);

/// Writes `count` flags, one after another, at once; other streams of the device may wait meanwhile. Any thread may
/// call it.
void set_flags(Device device, std::byte* first, size_t count, uint32_t value);

}  // namespace hone
