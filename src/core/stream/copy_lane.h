// CopyLane: copies between a device and host memory (core/memory/host_buffer.h) or another device, concurrent with the
// compute stream. On a CPU, a copy is work of the stream, queued as late as is allowed: when somebody waits for it. A
// reader that does not wait therefore finds other bytes there, as it would on a GPU.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "core/stream/stream.h"

namespace hone {

class CudaLane;

class CopyLane {
 public:
  /// A lane of `device`. The streams that it is used with must outlive its copies.
  explicit CopyLane(Device device);
  /// Waits for its copies. On a CPU it does not: those that are queued are the stream's, whose owner waits before their
  /// memory goes, and those that nobody has waited for are not made.
  ~CopyLane();
  CopyLane(CopyLane&&) noexcept;
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  /// Later copies run after the work that is now queued on `stream`.
  void fork(Stream& stream);
  /// Later copies also run after the first `calls` copies of another lane.
  void follow(const CopyLane& other, int64_t calls) const;
  void follow(const CopyLane& other) const { follow(other, other.calls()); }
  /// Starts copying all of `from` to `to`, which has the same size, after the earlier copies. `from` must not change
  /// until the copy has been waited for.
  void copy(Stream& stream, Tensor to, Tensor from);
  /// Writes a flag (core/stream/flags.h) after the earlier copies.
  void write_flag(Stream& stream, std::byte* flag, uint32_t value);
  /// Later copies run once the flag has reached `value`.
  void await_flag(Stream& stream, const std::byte* flag, uint32_t value);
  /// Work queued later on `stream` runs after the first `calls` copies.
  void join(Stream& stream, int64_t calls);
  /// Waits on the host for the first `calls` copies.
  void finish(Stream& stream, int64_t calls) const;
  /// Work queued later on another cudaStream_t (null on a CPU) runs after all copies so far.
  void hold(void* cuda_stream) const;
  /// Number of copies so far.
  int64_t calls() const { return calls_; }
  /// The cudaStream_t of the copies; null on a CPU.
  void* cuda_stream() const;

 private:
  /// A copy on a CPU that nobody has waited for.
  struct Waiting {
    Stream* stream;
    Tensor to, from;
  };
  /// Queues the first `calls` copies, on a CPU.
  void queue_first(int64_t calls) const;

  std::unique_ptr<CudaLane> cuda_;
  int64_t calls_ = 0;
  mutable std::deque<Waiting> waiting_;  // the last ones of calls_
};

}  // namespace hone
