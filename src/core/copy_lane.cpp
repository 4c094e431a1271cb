#include "core/copy_lane.h"

#include <cstring>

#include "core/cuda_lane.h"
#include "core/planned_device.h"

namespace hone {

CopyLane::CopyLane(Device device)
    : cuda_(device.kind == DeviceKind::kCuda && !is_planned(device) ? std::make_unique<CudaLane>(device.index)
                                                                    : nullptr) {}
CopyLane::~CopyLane() = default;
CopyLane::CopyLane(CopyLane&&) noexcept = default;

void CopyLane::fork(Stream& stream) {
  if (cuda_) cuda_->wait_for(stream.cuda().stream());
}

void CopyLane::follow(const CopyLane& other, int64_t calls) const {
  if (cuda_) other.cuda_->hold(cuda_->stream(), calls);
}

void CopyLane::copy(Stream& stream, Tensor to, Tensor from) {
  HONE_ASSERT(to.bytes() == from.bytes());
  ++calls_;
  if (cuda_) return cuda_->copy(to.data, from.data, to.bytes());
  stream.enqueue([to, from](ThreadPool&) { std::memcpy(to.data, from.data, to.bytes()); });
}

void CopyLane::join(Stream& stream, int64_t calls) {
  if (cuda_) cuda_->hold(stream.cuda().stream(), calls);
}

void CopyLane::hold(void* cuda_stream) const { cuda_->hold(cuda_stream, calls_); }

void CopyLane::finish(Stream& stream, int64_t calls) const { cuda_ ? cuda_->finish(calls) : stream.synchronize(); }

void* CopyLane::cuda_stream() const { return cuda_ ? cuda_->stream() : nullptr; }

}  // namespace hone
