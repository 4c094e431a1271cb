// CudaQueue: a CUDA stream with its resources: pinned memory for uploads, library handles and their fixed workspace.
// The CUDA half of Stream; ops use it through core/stream/cuda_launch.h.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <typeindex>

namespace hone {

/// Library handles bound to one stream, with a workspace of constant size.
struct CudaLibraries {
  void* cublaslt = nullptr;  ///< cublasLtHandle_t
  std::byte* workspace = nullptr;
  size_t workspace_bytes = 0;
};

class CudaQueue {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;

  explicit CudaQueue(int device);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  int device() const;
  int multiprocessors() const;
  /// 10 · major + minor of the compute capability.
  int compute_capability() const;
  size_t l2_bytes() const;
  /// Maximum shared memory per block, in bytes.
  size_t shared_memory() const;
  void* stream() const;  ///< cudaStream_t
  const CudaLibraries& libraries() const;

  /// State of an op on this queue that persists between calls (for example plans of a library): one T, created at first
  /// use.
  template <class T>
  T& state() {
    std::shared_ptr<void>& slot = op_states_[std::type_index(typeid(T))];
    if (!slot) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }

  /// Queues a copy from host memory; the source may be reused at once.
  void upload(std::byte* destination, const void* source, size_t bytes);
  /// Queues a copy to host memory, from the device or from pinned memory, and waits for it.
  void download(void* destination, const std::byte* source, size_t bytes);
  /// Calls `done` on a thread of the driver after the work queued so far; it must not use CUDA, nor throw.
  void call_after(std::function<void()> done);
  /// Waits; throws Error(kDeviceFailed) if the device has failed.
  void synchronize();

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::map<std::type_index, std::shared_ptr<void>> op_states_;  // destroyed before the handles in state_
};

}  // namespace hone
