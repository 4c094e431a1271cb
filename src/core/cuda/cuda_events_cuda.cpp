#include <cuda_runtime_api.h>

#include "core/cuda/cuda_check.h"
#include "core/cuda/cuda_events.h"

namespace hone {

struct CudaEvents::State {
  explicit State(CudaQueue& owner) : queue(owner) {}

  CudaQueue& queue;
  std::vector<cudaEvent_t> events;  // created at first use, then reused
  size_t used = 0;
};

CudaEvents::CudaEvents(CudaQueue& queue) : state_(std::make_unique<State>(queue)) {}

CudaEvents::~CudaEvents() {
  for (cudaEvent_t event : state_->events) cudaEventDestroy(event);
}

void CudaEvents::record(void* stream) {
  State& s = *state_;
  if (s.used == s.events.size()) cuda::check(cudaEventCreate(&s.events.emplace_back()), "creating an event");
  void* const on = stream != nullptr ? stream : s.queue.stream();
  cuda::check(cudaEventRecord(s.events[s.used++], static_cast<cudaStream_t>(on)), "recording an event");
}

size_t CudaEvents::size() const { return state_->used; }

std::vector<double> CudaEvents::seconds() {
  State& s = *state_;
  s.queue.synchronize();
  std::vector<double> seconds(s.used);
  for (size_t i = 0; i < s.used; ++i) {
    float milliseconds = 0;
    cuda::check(cudaEventSynchronize(s.events[i]), "waiting for an event");  // the event may be on another stream
    cuda::check(cudaEventElapsedTime(&milliseconds, s.events[0], s.events[i]), "reading an event");
    seconds[i] = static_cast<double>(milliseconds) * 1e-3;
  }
  return seconds;
}

void CudaEvents::clear() { state_->used = 0; }

}  // namespace hone
