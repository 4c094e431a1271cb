#include <cuda_runtime_api.h>

#include <array>

#include "core/cuda/cuda_check.h"
#include "core/cuda/cuda_lane.h"

namespace hone {

namespace {

/// An event is reused after this many copies; a wait for an old event then waits for a newer one.
constexpr int64_t kEvents = 64;

}  // namespace

struct CudaLane::State {
  cudaStream_t stream = nullptr;
  cudaEvent_t forked = nullptr;
  std::array<cudaEvent_t, kEvents> done{};
  int64_t calls = 0;

  /// The event after the first `count` copies or more.
  cudaEvent_t after(int64_t count) const { return done[static_cast<size_t>((count - 1) % kEvents)]; }

  ~State() {
    if (stream != nullptr) cudaStreamSynchronize(stream);
    for (cudaEvent_t event : done) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (forked != nullptr) cudaEventDestroy(forked);
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
};

CudaLane::CudaLane(int device) : state_(std::make_unique<State>()) {
  cuda::check(cudaSetDevice(device), "selecting a GPU");
  cuda::check(cudaStreamCreateWithFlags(&state_->stream, cudaStreamNonBlocking), "creating a stream");
  cuda::check(cudaEventCreateWithFlags(&state_->forked, cudaEventDisableTiming), "creating an event");
  for (cudaEvent_t& event : state_->done) {
    cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  }
}

CudaLane::~CudaLane() = default;

void* CudaLane::stream() const { return state_->stream; }

void CudaLane::wait_for(void* stream) {
  cuda::check(cudaEventRecord(state_->forked, static_cast<cudaStream_t>(stream)), "recording an event");
  cuda::check(cudaStreamWaitEvent(state_->stream, state_->forked), "waiting for an event");
}

void CudaLane::copy(std::byte* to, const std::byte* from, size_t bytes) {
  cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, state_->stream), "copying from or to the host");
  cuda::check(cudaEventRecord(state_->after(++state_->calls), state_->stream), "recording an event");
}

void CudaLane::hold(void* stream, int64_t calls) {
  if (calls == 0) return;
  cuda::check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), state_->after(calls)), "waiting for an event");
}

void CudaLane::finish(int64_t calls) {
  if (calls > 0) cuda::check(cudaEventSynchronize(state_->after(calls)), "copying from or to the host");
}

}  // namespace hone
