#include <cuda_runtime_api.h>

#include "core/cuda/cuda_check.h"
#include "core/cuda/cuda_device.h"
#include "core/memory/pinned_chunk.h"

namespace hone {

struct PinnedChunk::State {
  int device = 0;
  size_t size = 0;
  std::byte* memory = nullptr;
  cudaStream_t stream = nullptr;

  ~State() {
    if (stream != nullptr) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    if (memory != nullptr) cuda::release_pinned(memory);
  }
};

PinnedChunk::PinnedChunk(int device, size_t bytes) : state_(std::make_unique<State>()) {
  state_->device = device;
  state_->size = bytes;
  cuda::check(cudaSetDevice(device), "selecting a GPU");
  cuda::check(cudaStreamCreateWithFlags(&state_->stream, cudaStreamNonBlocking), "creating a stream");
  state_->memory = cuda::allocate_pinned(bytes);
}

PinnedChunk::~PinnedChunk() = default;
PinnedChunk::PinnedChunk(PinnedChunk&& other) noexcept = default;

std::byte* PinnedChunk::data() const { return state_->memory; }
size_t PinnedChunk::size() const { return state_->size; }

void PinnedChunk::start_upload(std::byte* destination, size_t bytes) {
  HONE_ASSERT(bytes <= state_->size);
  cuda::check(cudaMemcpyAsync(destination, state_->memory, bytes, cudaMemcpyHostToDevice, state_->stream),
              "copying to the GPU");
}

void PinnedChunk::start_download(const std::byte* source, size_t bytes) {
  HONE_ASSERT(bytes <= state_->size);
  cuda::check(cudaMemcpyAsync(state_->memory, source, bytes, cudaMemcpyDeviceToHost, state_->stream),
              "copying from the GPU");
}

void PinnedChunk::wait() { cuda::check(cudaStreamSynchronize(state_->stream), "copying to or from the GPU"); }

}  // namespace hone
