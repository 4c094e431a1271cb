#include "core/base/philox.h"
#include "core/stream/cuda_launch.h"
#include "ops/random_fill/random_fill.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;
/// Elements per thread: the four words of a counter give four uniform numbers or two normal ones.
constexpr int kPerThread = 4;

__device__ inline float normal_of(uint32_t first, uint32_t second) {
  const double u = (static_cast<double>(first) + 1.0) * 0x1p-32, v = static_cast<double>(second) * 0x1p-32;
  return static_cast<float>(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

__device__ inline std::array<uint32_t, 4> words_at(uint64_t key, uint64_t counter) {
  return philox(key, {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0u, 0u});
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    random_fill_kernel(T* dst, int64_t count, bool normal, float scale, uint64_t key) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, begin = group * kPerThread;
  if (begin >= count) return;
  float numbers[kPerThread];
  if (normal) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto words = words_at(key, static_cast<uint64_t>(2 * group + half));
      numbers[2 * half] = normal_of(words[0], words[1]);
      numbers[2 * half + 1] = normal_of(words[2], words[3]);
    }
  } else {
    const auto words = words_at(key, static_cast<uint64_t>(group));
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) numbers[i] = 2 * to_uniform(words[i]) - 1;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (begin + i < count) dst[begin + i] = from_float<T>(scale * numbers[i]);
  }
}

}  // namespace

void random_fill(const Context& context, const RandomFillArgs& args) {
  const int64_t count = args.dst.numel();
  if (context.dry() || count == 0) return;
  cuda::dispatch_float(args.dst.dtype, [&](auto element) {
    using T = decltype(element);
    random_fill_kernel<<<blocks_for(count, kThreads * kPerThread), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.dst), count, args.distribution == Distribution::kNormal, args.scale, args.key);
  });
  check_launch("drawing random weights");
}

}  // namespace hone::cuda
