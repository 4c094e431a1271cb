// CopyLane: copies between a device and host memory (core/host_buffer.h) beside the stream that computes. On a CPU,
// where nothing runs beside, a copy is work of the stream itself.
#pragma once

#include <cstdint>
#include <memory>

#include "core/stream.h"

namespace hone {

class CudaLane;

class CopyLane {
 public:
  /// A lane of the stream's device. The streams that it is used with outlive its copies.
  explicit CopyLane(Device device);
  /// Waits for its copies.
  ~CopyLane();
  CopyLane(CopyLane&&) noexcept;
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  /// Copies called from now on run after what is queued on `stream` now.
  void fork(Stream& stream);
  /// They run after the first `calls` copies of another lane, too.
  void follow(const CopyLane& other, int64_t calls) const;
  void follow(const CopyLane& other) const { follow(other, other.calls()); }
  /// Starts copying all of `from` to `to`, of as many bytes, after the copies before it.
  void copy(Stream& stream, Tensor to, Tensor from);
  /// What is queued on `stream` from now on runs after the first `calls` copies.
  void join(Stream& stream, int64_t calls);
  /// The host waits until the first `calls` copies have run.
  void finish(Stream& stream, int64_t calls) const;
  /// What is queued on another cudaStream_t from now on runs after all copies called so far; on a GPU alone.
  void hold(void* cuda_stream) const;
  /// Copies called so far.
  int64_t calls() const { return calls_; }
  /// The cudaStream_t that copies run on; null where they run in the stream.
  void* cuda_stream() const;

 private:
  std::unique_ptr<CudaLane> cuda_;
  int64_t calls_ = 0;
};

}  // namespace hone
