#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/cuda/cublaslt_library.h"
#include "core/cuda/cuda_check.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/cuda_queue.h"
#include "core/cuda/planned_device.h"

namespace hone {

namespace {

/// Uploads use two halves of pinned memory; a half is reused after its copies have run.
constexpr size_t kStagingBytes = size_t{4} << 20;

}  // namespace

struct CudaQueue::State {
  struct Staging {
    std::byte* memory = nullptr;
    size_t used = 0;
    cudaEvent_t copied = nullptr;
  };

  int device = 0;
  int multiprocessors = 0, compute_capability = 0;
  size_t l2_bytes = 0, shared_memory = 0;
  cudaStream_t stream = nullptr;
  std::array<Staging, 2> staging;
  size_t current = 0;
  CudaLibraries libraries;

  /// Pinned memory for `bytes` <= kStagingBytes; waits only if copies of the other half are still queued.
  std::byte* stage(size_t bytes) {
    if (staging[current].used + bytes > kStagingBytes) {
      cuda::check(cudaEventRecord(staging[current].copied, stream), "queuing an upload");
      current = 1 - current;
      cuda::check(cudaEventSynchronize(staging[current].copied), "waiting for an upload");
      staging[current].used = 0;
    }
    std::byte* memory = staging[current].memory + staging[current].used;
    staging[current].used += (bytes + 255) / 256 * 256;
    return memory;
  }
};

CudaQueue::CudaQueue(int device) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.device = device;
  if (is_planned({DeviceKind::kCuda, device})) {  // nothing runs on it
    s.multiprocessors = PlannedGpu::kMultiprocessors;
    s.compute_capability = PlannedGpu::kComputeCapability;
    s.l2_bytes = PlannedGpu::kL2Bytes;
    s.shared_memory = PlannedGpu::kSharedMemory;
    return;
  }
  const cuda::DeviceInfo info = cuda::device_info(device);
  s.multiprocessors = info.multiprocessors;
  s.compute_capability = 10 * info.major + info.minor;
  s.l2_bytes = info.l2_bytes;
  s.shared_memory = info.shared_memory;
  cuda::check(cudaSetDevice(device), "selecting a GPU");  // for the stream, its events and pinned memory
  cuda::check(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking), "creating a stream");
  for (State::Staging& half : s.staging) {
    half.memory = cuda::allocate_pinned(kStagingBytes + 256);
    cuda::check(cudaEventCreateWithFlags(&half.copied, cudaEventDisableTiming), "creating an event");
  }
}

CudaQueue::~CudaQueue() {
  State& s = *state_;
  if (s.stream == nullptr) return;
  cudaSetDevice(s.device);
  cudaStreamSynchronize(s.stream);
  if (s.libraries.cublaslt != nullptr)
    cuda::cublaslt_library().destroy(static_cast<cublasLtHandle_t>(s.libraries.cublaslt));
  if (s.libraries.workspace != nullptr) cuda::release(s.device, s.libraries.workspace);
  for (State::Staging& half : s.staging) {
    cudaEventDestroy(half.copied);
    cuda::release_pinned(half.memory);
  }
  cudaStreamDestroy(s.stream);
}

int CudaQueue::device() const { return state_->device; }
int CudaQueue::multiprocessors() const { return state_->multiprocessors; }
int CudaQueue::compute_capability() const { return state_->compute_capability; }
size_t CudaQueue::l2_bytes() const { return state_->l2_bytes; }
size_t CudaQueue::shared_memory() const { return state_->shared_memory; }
void* CudaQueue::stream() const { return state_->stream; }

const CudaLibraries& CudaQueue::libraries() const {
  CudaLibraries& libraries = state_->libraries;
  if (libraries.workspace == nullptr) {
    cuda::check(cudaSetDevice(state_->device), "selecting a GPU");
    cublasLtHandle_t cublaslt = nullptr;
    if (cuda::cublaslt_library().create(&cublaslt) != CUBLAS_STATUS_SUCCESS) {
      throw Error(ExitCode::kDeviceFailed, "cuBLAS cannot start on this GPU", "",
                  "`hone env` shows the driver and the libraries found; CUDA 13 is needed");
    }
    libraries.cublaslt = cublaslt;
    libraries.workspace = cuda::allocate(state_->device, kWorkspaceBytes);
    libraries.workspace_bytes = kWorkspaceBytes;
  }
  return libraries;
}

void CudaQueue::upload(std::byte* destination, const void* source, size_t bytes) {
  if (state_->stream == nullptr) return;
  cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(state_->stream, &recording), "copying to the GPU");
  // a replay would read the staging memory, which then has other contents
  if (recording != cudaStreamCaptureStatusNone) {
    throw Error(ExitCode::kDeviceFailed, "a copy from the host cannot be part of a recorded graph", "",
                "set cuda_graphs: false");
  }
  for (size_t begin = 0; begin < bytes; begin += kStagingBytes) {
    const size_t count = std::min(kStagingBytes, bytes - begin);
    std::byte* staged = state_->stage(count);
    std::memcpy(staged, static_cast<const std::byte*>(source) + begin, count);
    cuda::check(cudaMemcpyAsync(destination + begin, staged, count, cudaMemcpyHostToDevice, state_->stream),
                "copying to the GPU");
  }
}

void CudaQueue::download(void* destination, const std::byte* source, size_t bytes) {
  cuda::check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, state_->stream), "copying from the GPU");
  synchronize();
}

void CudaQueue::call_after(std::function<void()> done) {
  if (state_->stream == nullptr) return done();
  auto call = std::make_unique<std::function<void()>>(std::move(done));
  const auto run = [](void* data) {
    (*std::unique_ptr<std::function<void()>>(static_cast<std::function<void()>*>(data)))();
  };
  cuda::check(cudaLaunchHostFunc(state_->stream, run, call.get()), "queueing a call");
  call.release();
}

void CudaQueue::synchronize() {
  if (state_->stream != nullptr) cuda::check(cudaStreamSynchronize(state_->stream), "running a step");
}

}  // namespace hone
