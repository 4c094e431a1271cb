// Sinks on a GPU: one memory-bound pass over out and lse, and one over dout and out for the sinks' gradient.
#include "core/stream/cuda_launch.h"
#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "ops/attention/attention_sinks.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRows = 64;  // rows of a chunk of the gradient's sum

template <class T, class S>
struct Sinks {
  const S* sinks;
  T* out;
  const T* dout;
  float* lse;
  float* partial;
  int64_t rows;
  int heads, dim;

  __device__ float& lse_of(int64_t row, int head) const { return lse[head * rows + row]; }
  __device__ int64_t first_of(int64_t row, int head) const { return (row * heads + head) * dim; }
};

/// One warp per row of a head.
template <class T, class S>
__global__ void __launch_bounds__(kThreads) apply_kernel(Sinks<T, S> args) {
  const int64_t pair = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (pair >= args.rows * args.heads) return;
  const int64_t row = pair / args.heads;
  const int head = static_cast<int>(pair % args.heads), lane = threadIdx.x % 32;
  float& lse = args.lse_of(row, head);
  const float sink = to_float(args.sinks[head]), before = lse;
  const float kept = 1.0f / (1.0f + expf(sink - before));
  T* out = args.out + args.first_of(row, head);
  for (int i = lane; i < args.dim; i += 32) out[i] = from_float<T>(kept * to_float(out[i]));
  __syncwarp();
  if (lane == 0) lse = fmaxf(before, sink) + log1pf(expf(-fabsf(before - sink)));
}

/// One CTA per chunk of rows of a head; its warps process every kWarps-th row.
template <class T, class S>
__global__ void __launch_bounds__(kThreads) grad_kernel(Sinks<T, S> args) {
  __shared__ float sums[kWarps];
  const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t begin = int64_t{blockIdx.x} * kRows, end = min(begin + kRows, args.rows);
  const float sink = to_float(args.sinks[head]);
  float sum = 0.0f;
  for (int64_t row = begin + warp; row < end; row += kWarps) {
    const int64_t first = args.first_of(row, head);
    float delta = 0.0f;
    for (int i = lane; i < args.dim; i += 32) delta += to_float(args.dout[first + i]) * to_float(args.out[first + i]);
    sum -= expf(sink - args.lse_of(row, head)) * warp_sum(delta);
  }
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += sums[i];
  args.partial[int64_t{blockIdx.x} * args.heads + head] = sum;
}

/// Calls f with the arguments in the dtypes of out and of the sinks.
template <class F>
void with_types(const AttentionSinks& args, const Tensor& dout, const Tensor& partial, F&& f) {
  cuda::dispatch_float(args.out.dtype, [&](auto element) {
    cuda::dispatch_float(args.sinks.dtype, [&](auto sink) {
      using T = decltype(element);
      using S = decltype(sink);
      const auto heads = static_cast<int>(args.sinks.numel());
      f(Sinks<T, S>{.sinks = elements<S>(args.sinks),
                    .out = elements<T>(args.out),
                    .dout = elements<T>(dout),
                    .lse = elements<float>(args.lse),
                    .partial = elements<float>(partial),
                    .rows = args.out.shape[0],
                    .heads = heads,
                    .dim = static_cast<int>(args.out.shape[1]) / heads});
    });
  });
}

}  // namespace

void apply_sinks(const Context& context, const AttentionSinks& args) {
  if (context.dry() || args.out.numel() == 0) return;
  with_types(args, {}, {}, [&]<class T, class S>(const Sinks<T, S>& sinks) {
    apply_kernel<T, S><<<blocks_for(sinks.rows * sinks.heads, kWarps), kThreads, 0, stream_of(context)>>>(sinks);
  });
  check_launch("applying attention sinks");
}

void sinks_grad(const Context& context, const AttentionSinksGrad& args) {
  const int64_t rows = args.dout.shape[0], heads = args.forward.sinks.numel(), chunks = (rows + kRows - 1) / kRows;
  ArenaScope memory(context.scratch());
  const Tensor partial = memory.take({chunks, heads}, DType::kF32);
  if (!context.dry() && rows > 0) {
    with_types(args.forward, args.dout, partial, [&]<class T, class S>(const Sinks<T, S>& sinks) {
      const dim3 grid(blocks_for(chunks, 1), static_cast<unsigned>(heads));
      grad_kernel<T, S><<<grid, kThreads, 0, stream_of(context)>>>(sinks);
    });
    check_launch("summing the gradient of attention sinks");
  }
  sum_chunks(context, partial, {args.dsinks});
}

}  // namespace hone::cuda
