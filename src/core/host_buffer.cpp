#include "core/host_buffer.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "core/cuda_device.h"
#include "core/numa.h"
#include "core/planned_device.h"

namespace hone {

namespace {

/// Writes to every page: the driver pins existing pages much faster than it creates them.
void commit(std::byte* memory, size_t bytes) {
  constexpr size_t kPage = 4096, kBytesPerThread = size_t{1} << 30;
  const size_t threads =
      std::clamp<size_t>(bytes / kBytesPerThread, 1, static_cast<size_t>(std::min(usable_cores(), 16)));
  const size_t share = (bytes / threads + kPage) / kPage * kPage;
  std::vector<std::thread> workers;
  for (size_t begin = 0; begin < bytes; begin += share) {
    workers.emplace_back([=] {
      for (size_t i = begin; i < std::min(begin + share, bytes); i += kPage) memory[i] = std::byte{0};
    });
  }
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

HostBuffer::HostBuffer(Device device, size_t bytes) : memory_(is_planned(device) ? device : Device{}, bytes) {
  if (bytes == 0 || is_planned(device)) return;
  if (device.kind == DeviceKind::kCpu) return;  // committed at the first write
  commit(memory_.data(), bytes);
  cuda::pin(device.index, memory_.data(), bytes);
  pinned_ = true;
}

void HostBuffer::reset() {
  if (pinned_) cuda::unpin(memory_.data());
  pinned_ = false;
  memory_.reset();
}

}  // namespace hone
