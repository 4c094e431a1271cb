// CudaLane: a CUDA stream for copies concurrent with a compute stream, with an event for each copy. The CUDA half of
// CopyLane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace hone {

class CudaLane {
 public:
  explicit CudaLane(int device);
  /// Waits for its copies.
  ~CudaLane();
  CudaLane(const CudaLane&) = delete;
  CudaLane& operator=(const CudaLane&) = delete;

  void* stream() const;  ///< cudaStream_t
  /// Later copies run after the work that is now queued on another cudaStream_t.
  void wait_for(void* stream);
  /// Copies between device and pinned host memory, in either direction.
  void copy(std::byte* to, const std::byte* from, size_t bytes);
  /// Work queued later on another cudaStream_t runs after the first `calls` copies or more.
  void hold(void* stream, int64_t calls);
  /// Waits on the host for the first `calls` copies or more.
  void finish(int64_t calls);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hone
