#include "core/stream/flags.h"

#include <atomic>
#include <thread>

#include "core/stream/cuda_flags.h"

namespace hone {

namespace {

std::atomic_ref<uint32_t> counter(const std::byte* flag) {
  return std::atomic_ref(*reinterpret_cast<uint32_t*>(const_cast<std::byte*>(flag)));
}

}  // namespace

bool has_flags(Device device) { return device.kind == DeviceKind::kCpu || cuda::has_flags(device.index); }

void write_flag(Stream& stream, std::byte* flag, uint32_t value) {
  if (stream.device().kind == DeviceKind::kCuda) return cuda::write_flag(stream.cuda().stream(), flag, value);
  stream.enqueue([flag, value](ThreadPool&) { counter(flag).store(value, std::memory_order_release); });
}

void await_flag(Stream& stream, const std::byte* flag, uint32_t value) {
  if (stream.device().kind == DeviceKind::kCuda) return cuda::await_flag(stream.cuda().stream(), flag, value);
  stream.enqueue([flag, value](ThreadPool&) {
    while (static_cast<int32_t>(counter(flag).load(std::memory_order_acquire) - value) < 0) std::this_thread::yield();
  });
}

void await_flags(Stream& stream, const std::byte* first, int count, int except, uint32_t value) {
  if (stream.device().kind == DeviceKind::kCuda) {
    return cuda::await_flags(stream.cuda().stream(), first, count, except, value);
  }
  for (int i = 0; i < count; ++i) {
    if (i != except) await_flag(stream, first + static_cast<size_t>(i) * kFlagBytes, value);
  }
}

void set_flags(Device device, std::byte* first, size_t count, uint32_t value) {
  if (device.kind == DeviceKind::kCuda) return cuda::set_flags(device.index, first, count, value);
  for (size_t i = 0; i < count; ++i) counter(first + i * kFlagBytes).store(value, std::memory_order_release);
}

}  // namespace hone
