// Stream: work in order, beside the host. A CPU stream is a queue served by one thread, which shares its loops with the
// pool; so the host runs ahead on a CPU exactly as it does on a GPU, and code that reads results too early fails on
// both. A CUDA stream is CUDA's own.
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

#include "core/cuda_queue.h"
#include "core/kernel_tier.h"
#include "core/tensor.h"

namespace hone {

class KernelNotes;
class Profiler;
class ThreadPool;

class Stream {
 public:
  using Work = std::function<void(ThreadPool&)>;

  Stream(Device device, ThreadPool& pool);
  /// Waits for the queued work; errors that nobody waited for are dropped.
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
  /// Selects the kernels that run on every GPU instead of those for its generation: they are the oracle of the others
  /// in tests.
  void use_general_kernels(bool general) { kernel_limit_.tier = general ? KernelTier::kGeneral : KernelTier::kSm100; }
  bool general_kernels() const { return kernel_limit_.tier == KernelTier::kGeneral; }
  /// Tests run the kernels of other GPUs on the one they have.
  void limit_kernels(const KernelLimit& limit) { kernel_limit_ = limit; }
  const KernelLimit& kernel_limit() const { return kernel_limit_; }

  /// Who is told which op runs when (core/profiler.h), or null.
  void set_profiler(Profiler* profiler) { profiler_ = profiler; }
  Profiler* profiler() const { return profiler_; }

  /// Who is told which kernels ops choose (core/kernel_notes.h), or null.
  void set_kernel_notes(KernelNotes* notes) { kernel_notes_ = notes; }
  KernelNotes* kernel_notes() const { return kernel_notes_; }

  /// CPU only: queues work behind everything queued before. After a failure the queue is skipped until synchronize().
  void enqueue(Work work);
  /// Waits until the queue is empty; throws the first exception of the work in it.
  void synchronize();

  /// Queues the copy of host values to the front of `destination`; the values are moved into the queue.
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
