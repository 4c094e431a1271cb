// CudaLane: a CUDA stream for copies beside a compute stream, and when each of them ended. The CUDA half of CopyLane.
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
  /// What is queued from now on runs after what is queued on another cudaStream_t now.
  void wait_for(void* stream);
  /// Copies between device and pinned host memory, either way.
  void copy(std::byte* to, const std::byte* from, size_t bytes);
  /// What is queued on another cudaStream_t from now on runs after the first `calls` copies, or more.
  void hold(void* stream, int64_t calls);
  /// The host waits for the first `calls` copies, or more.
  void finish(int64_t calls);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hone
