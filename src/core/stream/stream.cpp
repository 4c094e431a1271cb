#include "core/stream/stream.h"

#include <exception>
#include <utility>

#include "core/cpu/thread_pool.h"
#include "core/stream/process_kernels.h"

namespace hone {

Stream::Stream(Device device, ThreadPool& pool)
    : device_(device), pool_(pool), kernel_limit_(kernel_limit_of_process()) {
  if (device.kind == DeviceKind::kCuda) {
    cuda_ = std::make_unique<CudaQueue>(device.index);
  } else {
    server_ = std::thread([this] { serve(); });
  }
}

Stream::~Stream() {
  if (!server_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  server_.join();
}

void Stream::use_general_kernels(bool general) {
  kernel_limit_.tier = general ? KernelTier::kGeneral : kernel_limit_of_process().tier;
}

void Stream::enqueue(Work work) {
  HONE_ASSERT(!cuda_, "a GPU runs kernels only");
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    if (queue_.size() > 1) return;  // the server is awake or has been woken
  }
  wake_.notify_one();
}

void Stream::call_after(std::function<void()> done) {
  if (cuda_) return cuda_->call_after(std::move(done));
  enqueue([done = std::move(done)](ThreadPool&) { done(); });
}

void Stream::synchronize() {
  if (cuda_) return cuda_->synchronize();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Stream::settle() noexcept {
  try {
    synchronize();
  } catch (...) {  // nobody waits for it
  }
}

void Stream::serve() {
  pool_.bind_caller();
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    const bool skip = error_ != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    if (!skip) {
      try {
        work(pool_);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    work = nullptr;
    lock.lock();
    if (failure) error_ = failure;
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

}  // namespace hone
