#include "core/memory/host_buffer.h"

#include "core/cpu/numa.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/planned_device.h"

namespace hone {

HostBuffer::HostBuffer(Device device, size_t bytes) : memory_(is_planned(device) ? device : Device{}, bytes) {
  if (bytes == 0 || is_planned(device)) return;
  if (device.kind == DeviceKind::kCpu) return;  // committed at the first write
  touch_pages(memory_.data(), bytes);           // the driver pins existing pages much faster than it creates them
  cuda::pin(device.index, memory_.data(), bytes);
  pinned_ = true;
}

void HostBuffer::reset() {
  if (pinned_) cuda::unpin(memory_.data());
  pinned_ = false;
  memory_.reset();
}

}  // namespace hone
