#include "core/stream/copy_lane.h"

#include <cstring>

#include "core/cuda/cuda_lane.h"
#include "core/cuda/planned_device.h"
#include "core/stream/cuda_flags.h"
#include "core/stream/flags.h"

namespace hone {

CopyLane::CopyLane(Device device)
    : cuda_(device.kind == DeviceKind::kCuda && !is_planned(device) ? std::make_unique<CudaLane>(device.index)
                                                                    : nullptr) {}
CopyLane::~CopyLane() = default;
CopyLane::CopyLane(CopyLane&&) noexcept = default;

void CopyLane::fork(Stream& stream) {
  if (cuda_) cuda_->wait_for(stream.cuda().stream());
}

void CopyLane::queue_first(int64_t calls) const {
  while (!waiting_.empty() && calls_ - static_cast<int64_t>(waiting_.size()) < calls) {
    const Waiting copy = waiting_.front();
    waiting_.pop_front();
    copy.stream->enqueue(
        [to = copy.to, from = copy.from](ThreadPool&) { std::memcpy(to.data, from.data, to.bytes()); });
  }
}

void CopyLane::follow(const CopyLane& other, int64_t calls) const {
  cuda_ ? other.cuda_->hold(cuda_->stream(), calls) : other.queue_first(calls);
}

void CopyLane::copy(Stream& stream, Tensor to, Tensor from) {
  HONE_ASSERT(to.bytes() == from.bytes());
  ++calls_;
  cuda_ ? cuda_->copy(to.data, from.data, to.bytes()) : waiting_.push_back({&stream, to, from});
}

void CopyLane::write_flag(Stream& stream, std::byte* flag, uint32_t value) {
  if (cuda_) return cuda::write_flag(cuda_->stream(), flag, value);
  queue_first(calls_);
  hone::write_flag(stream, flag, value);
}

void CopyLane::await_flag(Stream& stream, const std::byte* flag, uint32_t value) {
  if (cuda_) return cuda::await_flag(cuda_->stream(), flag, value);
  queue_first(calls_);
  hone::await_flag(stream, flag, value);
}

void CopyLane::join(Stream& stream, int64_t calls) {
  cuda_ ? cuda_->hold(stream.cuda().stream(), calls) : queue_first(calls);
}

void CopyLane::hold(void* cuda_stream) const { cuda_ ? cuda_->hold(cuda_stream, calls_) : queue_first(calls_); }

void CopyLane::finish(Stream& stream, int64_t calls) const {
  if (cuda_) return cuda_->finish(calls);
  queue_first(calls);
  stream.synchronize();
}

void* CopyLane::cuda_stream() const { return cuda_ ? cuda_->stream() : nullptr; }

}  // namespace hone
