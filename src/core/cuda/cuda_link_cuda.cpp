#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

#include "core/cuda/cuda_check.h"
#include "core/cuda/cuda_link.h"

namespace hone {

namespace {

/// Events that no mark uses. An event that is recorded again is another point to those that wait for it later, so each
/// mark has one of its own until nobody can wait for it.
class FreeEvents {
 public:
  explicit FreeEvents(int device) : device_(device) {}
  ~FreeEvents() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  FreeEvents(const FreeEvents&) = delete;
  FreeEvents& operator=(const FreeEvents&) = delete;

  int device() const { return device_; }

  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!events_.empty()) {
        cudaEvent_t event = events_.back();
        events_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    cuda::check(cudaSetDevice(device_), "selecting a GPU");
    // A thread that waits sleeps: its core belongs to the experts' products.
    cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync), "creating an event");
    return event;
  }
  void give_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }

 private:
  int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> events_;
};

void call(void* argument) {
  const std::unique_ptr<std::function<void()>> wait(static_cast<std::function<void()>*>(argument));
  (*wait)();
}

}  // namespace

struct CudaLink::State {
  cudaStream_t stream;
  std::shared_ptr<FreeEvents> events;
};

CudaLink::CudaLink(CudaQueue& queue)
    : state_(std::make_unique<State>(
          State{static_cast<cudaStream_t>(queue.stream()), std::make_shared<FreeEvents>(queue.device())})) {}

CudaLink::~CudaLink() = default;

std::function<void()> CudaLink::mark() {
  const std::shared_ptr<CUevent_st> event(state_->events->take(),
                                          [events = state_->events](cudaEvent_t e) { events->give_back(e); });
  cuda::check(cudaEventRecord(event.get(), state_->stream), "recording an event");
  return [event, device = state_->events->device()] {
    cuda::check(cudaSetDevice(device), "selecting a GPU");
    cuda::check(cudaEventSynchronize(event.get()), "waiting for a GPU");
  };
}

// A host function, not a wait for a value in memory (cuStreamWaitValue32): its end cannot be missed, and the driver of
// every platform has it. It costs the GPU the time in which a thread of the driver starts.
void CudaLink::hold(std::function<void()> wait) {
  auto argument = std::make_unique<std::function<void()>>(std::move(wait));
  cuda::check(cudaLaunchHostFunc(state_->stream, &call, argument.get()), "queuing a wait");
  argument.release();  // call() owns it
}

void CudaLink::copy(std::byte* to, const std::byte* from, size_t bytes) {
  cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, state_->stream), "copying from or to the host");
}

}  // namespace hone
