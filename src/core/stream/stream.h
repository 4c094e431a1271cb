// Stream: work in order, asynchronous to the host. A CPU stream is a queue with one thread, which shares its loops with
// the pool: the host runs ahead on a CPU as on a GPU, and code that reads results too early fails on both. A CUDA
// stream is a cudaStream_t.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/kernel_tier.h"
#include "core/base/tensor.h"
#include "core/cuda/cuda_queue.h"

namespace hone {

class KernelNotes;
class Profiler;
class ThreadPool;

class Stream {
 public:
  using Work = std::function<void(ThreadPool&)>;

  Stream(Device device, ThreadPool& pool);
  /// Waits for the queued work; drops errors that nobody waited for.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  ThreadPool& pool() const { return pool_; }

  /// The CUDA half; only on a GPU.
  CudaQueue& cuda() const {
    HONE_ASSERT(cuda_ != nullptr, "not a GPU");
    return *cuda_;
  }
  /// Selects the general kernels, which run on every GPU, instead of those for its generation: they are the oracle in
  /// tests.
  void use_general_kernels(bool general);
  bool general_kernels() const { return kernel_limit_.tier == KernelTier::kGeneral; }
  /// Lets tests run the kernels of other GPUs on the present one.
  void limit_kernels(const KernelLimit& limit) { kernel_limit_ = limit; }
  const KernelLimit& kernel_limit() const { return kernel_limit_; }

  /// The profiler of the ops (core/stream/profiler.h), or null.
  void set_profiler(Profiler* profiler) { profiler_ = profiler; }
  Profiler* profiler() const { return profiler_; }

  /// The receiver of the ops' kernel choices (core/stream/kernel_notes.h), or null.
  void set_kernel_notes(KernelNotes* notes) { kernel_notes_ = notes; }
  KernelNotes* kernel_notes() const { return kernel_notes_; }

  /// CPU only: queues work after all earlier work. After a failure the queue is skipped until synchronize().
  void enqueue(Work work);
  /// Calls `done` after all work queued so far, on another thread; it must not use streams or the device, nor throw. On
  /// a CPU it is dropped if earlier work has failed.
  void call_after(std::function<void()> done);
  /// Waits until the queue is empty; throws the first exception of its work.
  void synchronize();
  /// Waits until the queue is empty, and drops the exceptions of its work: before memory that it uses goes.
  void settle() noexcept;

  /// Queues a copy of host values to the front of `destination`; moves the values into the queue.
  template <class T>
  void upload(Tensor destination, std::vector<T> values) {
    HONE_ASSERT(values.size() * sizeof(T) <= destination.bytes());
    if (cuda_) return cuda_->upload(destination.data, values.data(), values.size() * sizeof(T));
    enqueue([destination, values = std::move(values)](ThreadPool&) {
      if (!values.empty()) std::memcpy(destination.data, values.data(), values.size() * sizeof(T));
    });
  }
  /// Waits, then returns the elements.
  template <class T>
  std::vector<T> download(Tensor source) {
    if (cuda_) {
      std::vector<T> values(static_cast<size_t>(source.numel()));
      cuda_->download(values.data(), reinterpret_cast<const std::byte*>(source.as<T>()), source.bytes());
      return values;
    }
    synchronize();
    const T* begin = source.as<T>();
    return std::vector<T>(begin, begin + source.numel());
  }

 private:
  void serve();

  Device device_;
  ThreadPool& pool_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Work> queue_;
  std::exception_ptr error_;
  bool busy_ = false, stopping_ = false;
  KernelLimit kernel_limit_;
  Profiler* profiler_ = nullptr;
  KernelNotes* kernel_notes_ = nullptr;
  std::unique_ptr<CudaQueue> cuda_;
  std::thread server_;
};

}  // namespace hone
