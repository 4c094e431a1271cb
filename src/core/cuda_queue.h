// CudaQueue: a CUDA stream with what its work needs: pinned memory that uploads pass through, library handles and their
// fixed workspace. The CUDA half of Stream; ops reach it through core/cuda_launch.h.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <typeindex>

namespace hone {

/// Handles of libraries bound to one stream, with workspace of constant size.
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
  /// Bytes of shared memory that a block may have.
  size_t shared_memory() const;
  void* stream() const;  ///< cudaStream_t
  const CudaLibraries& libraries() const;

  /// What an op keeps from call to call on this queue (plans of a library, say): one T, made at the first use.
  template <class T>
  T& state() {
    std::shared_ptr<void>& slot = op_states_[std::type_index(typeid(T))];
    if (!slot) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }

  /// Queues a copy from host memory, which may be reused at once.
  void upload(std::byte* destination, const void* source, size_t bytes);
  /// Queues a copy to host memory, from the device or from pinned memory, and waits for it.
  void download(void* destination, const std::byte* source, size_t bytes);
  /// Waits; throws Error(kDeviceFailed) if the device has failed.
  void synchronize();

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::map<std::type_index, std::shared_ptr<void>> op_states_;  // gone before the handles in state_
};

}  // namespace hone
