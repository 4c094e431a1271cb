// DoRA's norms and scaling on a GPU. Scaling reads and writes each element once and is bound by memory; the norms read
// the weight once and the adapter's A once for every kNormRows of its rows, little beside the product of many tokens.
#include "core/stream/cuda_launch.h"
#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "ops/dora/dora.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;
/// Rows of the weight that a block of dora_norm works on: an element of A is loaded once for all of them.
constexpr int kNormRows = 8;
/// Rows that a block of dora_scale_grad adds up.
constexpr int64_t kRowsPerChunk = 64;

/// Elements of either dtype, as float32.
struct Floats {
  explicit Floats(const Tensor& tensor)
      : wide(tensor.defined() && tensor.dtype == DType::kF32 ? elements<float>(tensor) : nullptr),
        narrow(tensor.defined() && tensor.dtype == DType::kBF16 ? elements<__nv_bfloat16>(tensor) : nullptr) {}

  __device__ bool defined() const { return wide || narrow; }
  __device__ float operator[](int64_t i) const { return wide ? wide[i] : to_float(narrow[i]); }

  const float* wide;
  const __nv_bfloat16* narrow;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const T* w, Floats a, Floats b, float* norms, float scaling, int64_t out, int64_t in, int64_t r) {
  const int64_t first = int64_t{blockIdx.x} * kNormRows;
  float squares[kNormRows] = {};
  for (int64_t i = threadIdx.x; i < in; i += kThreads) {
    float low_rank[kNormRows] = {};
    for (int64_t rho = 0; rho < r; ++rho) {
      const float direction = a[rho * in + i];
#pragma unroll
      for (int row = 0; row < kNormRows; ++row) {
        if (first + row < out) low_rank[row] += b[(first + row) * r + rho] * direction;
      }
    }
#pragma unroll
    for (int row = 0; row < kNormRows; ++row) {
      if (first + row >= out) continue;
      const float value = to_float(w[(first + row) * in + i]) + scaling * low_rank[row];
      squares[row] += value * value;
    }
  }
  __shared__ float partial[kThreads / 32][kNormRows];
#pragma unroll
  for (int row = 0; row < kNormRows; ++row) {
    const float sum = warp_sum(squares[row]);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32][row] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kNormRows || first + threadIdx.x >= out) return;
  float sum = 0.0f;
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += partial[warp][threadIdx.x];
  norms[first + threadIdx.x] = sqrtf(sum);
}

__device__ inline float reciprocal(float norm) { return norm > 0.0f ? 1.0f / norm : 0.0f; }

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const T* x, const float* norms, Floats magnitude, Floats bias, T* y, int64_t out, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t o = i % out;
  y[i] = from_float<T>(to_float(x[i]) * (magnitude[o] * reciprocal(norms[o])) + (bias.defined() ? bias[o] : 0.0f));
}

template <class T>
struct ScaleGrad {
  const T *dy, *x;  ///< x null: dmagnitude is not wanted
  const float* norms;
  Floats magnitude;
  T* dx;  ///< null: not wanted
  bool adds;
  float *products, *sums;  ///< [chunks, row_stride] or null
  int64_t row_stride, rows, out;
  unsigned columns;  ///< CTAs across the outputs
};

template <class T>
__global__ void __launch_bounds__(kThreads) scale_grad_kernel(ScaleGrad<T> a) {
  const int64_t o = int64_t{blockIdx.x % a.columns} * kThreads + threadIdx.x, chunk = blockIdx.x / a.columns;
  if (o >= a.out) return;
  const float inverse = reciprocal(a.norms[o]), factor = a.magnitude[o] * inverse;
  float product = 0.0f, sum = 0.0f;
  const int64_t end = min((chunk + 1) * kRowsPerChunk, a.rows);
  for (int64_t t = chunk * kRowsPerChunk; t < end; ++t) {
    const int64_t i = t * a.out + o;
    const float gradient = to_float(a.dy[i]);
    if (a.x) product += gradient * to_float(a.x[i]);
    sum += gradient;
    if (a.dx) a.dx[i] = from_float<T>(a.adds ? gradient * factor + to_float(a.dx[i]) : gradient * factor);
  }
  if (a.products) a.products[chunk * a.row_stride + o] = product * inverse;
  if (a.sums) a.sums[chunk * a.row_stride + o] = sum;
}

}  // namespace

void dora_norm(const Context& context, const DoraNormArgs& args) {
  const Tensor& w = args.w.dense();
  const int64_t out = args.shape[0];
  if (context.dry() || out == 0) return;
  cuda::dispatch_float(w.dtype, [&](auto element) {
    using T = decltype(element);
    norm_kernel<T><<<blocks_for(out, kNormRows), kThreads, 0, stream_of(context)>>>(
        elements<T>(w), Floats(args.lora_a), Floats(args.lora_b), elements<float>(args.norms), args.scaling, out,
        args.shape[1], args.lora_a.shape[0]);
  });
  check_launch("taking the norms of DoRA");
}

void dora_scale(const Context& context, const DoraScaleArgs& args) {
  const int64_t count = args.x.numel();
  if (context.dry() || count == 0) return;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    scale_kernel<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.x), elements<float>(args.norms), Floats(args.magnitude), Floats(args.bias),
        elements<T>(args.y), args.x.shape[1], count);
  });
  check_launch("scaling by DoRA's magnitudes");
}

void dora_scale_grad(const Context& context, const DoraScaleGradArgs& args) {
  const int64_t rows = args.dy.shape[0], out = args.dy.shape[1];
  const int64_t chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  const int64_t sums = (args.dmagnitude.wanted() ? 1 : 0) + (args.dbias.wanted() ? 1 : 0);
  ArenaScope scratch(context.scratch());
  const Tensor partial = sums > 0 ? scratch.take({chunks, sums * out}, DType::kF32) : Tensor{};
  if (!context.dry() && rows > 0 && out > 0) {
    float* const first = sums > 0 ? elements<float>(partial) : nullptr;
    cuda::dispatch_float(args.dy.dtype, [&](auto element) {
      using T = decltype(element);
      const ScaleGrad<T> grad{.dy = elements<T>(args.dy),
                              .x = args.dmagnitude.wanted() ? elements<T>(args.x) : nullptr,
                              .norms = elements<float>(args.norms),
                              .magnitude = Floats(args.magnitude),
                              .dx = args.dx.wanted() ? elements<T>(args.dx.dst) : nullptr,
                              .adds = args.dx.beta != 0.0f,
                              .products = args.dmagnitude.wanted() ? first : nullptr,
                              .sums = args.dbias.wanted() ? first + (args.dmagnitude.wanted() ? out : 0) : nullptr,
                              .row_stride = sums * out,
                              .rows = rows,
                              .out = out,
                              .columns = blocks_for(out, kThreads)};
      // The grid has one dimension: the others end at 65,535.
      const unsigned blocks = blocks_for(chunks * grad.columns, 1);
      scale_grad_kernel<T><<<blocks, kThreads, 0, stream_of(context)>>>(grad);
    });
    check_launch("differentiating DoRA's scaling");
  }
  if (sums == 2) return sum_chunks(context, partial, {args.dmagnitude, args.dbias});
  if (sums == 1) sum_chunks(context, partial, {args.dmagnitude.wanted() ? args.dmagnitude : args.dbias});
}

}  // namespace hone::cuda
