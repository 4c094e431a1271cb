// CopyLane: copies between a device and host memory (core/host_buffer.h), concurrent with the compute stream. On a CPU,
// a copy is work of the stream.
#pragma once

#include <cstdint>
#include <memory>

#include "core/stream.h"

namespace hone {

class CudaLane;

class CopyLane {
 public:
  /// A lane of `device`. The streams that it is used with must outlive its copies.
  explicit CopyLane(Device device);
  /// Waits for its copies.
  ~CopyLane();
  CopyLane(CopyLane&&) noexcept;
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  /// Later copies run after the work that is now queued on `stream`.
  void fork(Stream& stream);
  /// Later copies also run after the first `calls` copies of another lane.
  void follow(const CopyLane& other, int64_t calls) const;
  void follow(const CopyLane& other) const { follow(other, other.calls()); }
  /// Starts copying all of `from` to `to`, which has the same size, after the earlier copies.
  void copy(Stream& stream, Tensor to, Tensor from);
  /// Work queued later on `stream` runs after the first `calls` copies.
  void join(Stream& stream, int64_t calls);
  /// Waits on the host for the first `calls` copies.
  void finish(Stream& stream, int64_t calls) const;
  /// Work queued later on another cudaStream_t runs after all copies so far; only on a GPU.
  void hold(void* cuda_stream) const;
  /// Number of copies so far.
  int64_t calls() const { return calls_; }
  /// The cudaStream_t of the copies; null on a CPU.
  void* cuda_stream() const;

 private:
  std::unique_ptr<CudaLane> cuda_;
  int64_t calls_ = 0;
};

}  // namespace hone
