#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/rms_norm/norm_weight_cuda.h"
#include "ops/rms_norm/rms_norm.h"

namespace hone::cuda {

namespace {

/// Rows per CTA: with dw few enough to use every multiprocessor, but enough that summing chunks is cheap.
constexpr int64_t kRowsPerChunk = 32, kRowsWithoutSums = 8;

template <class T>
struct GradRows {
  const T* x;
  NormWeight w;
  const T* dy;
  T* dx;  // null: not wanted
  bool accumulate;
  float* partial;  // [chunks, H], or null
  int64_t rows, rows_per_block, hidden;
  float eps;
};

/// The sums of two values over the CTA. Calls alternate between the halves of `partial`, so that one barrier is enough:
/// values that a call overwrites were read before the barrier of the call in between.
template <int kThreads>
__device__ float2 sum_pair(float a, float b, float2 (&partial)[2][kThreads / 32], int half) {
  a = warp_sum(a);
  b = warp_sum(b);
  if constexpr (kThreads > 32) {
    if (threadIdx.x % 32 == 0) partial[half][threadIdx.x / 32] = {a, b};
    __syncthreads();
    a = b = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) {
      a += partial[half][warp].x;
      b += partial[half][warp].y;
    }
  }
  return {a, b};
}

/// 16-byte vectors of a row of each tensor that a thread keeps.
constexpr int kVectors = 2;

/// Rows of x and dy in the memory's dtype; the next row is loaded while one is processed.
template <class T>
struct RowVectors {
  static constexpr int kSize = 16 / sizeof(T);
  Vector<T, kSize> x[kVectors], dy[kVectors];

  __device__ void load(const GradRows<T>& a, int64_t row, const int (&columns)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (columns[v] >= a.hidden) continue;
      x[v] = load_vector<kSize>(a.x + row * a.hidden + columns[v]);
      dy[v] = load_vector<kSize>(a.dy + row * a.hidden + columns[v]);
    }
  }
};

/// A CTA processes a chunk of rows.
template <class T, int kThreads, bool kWeightGrad>
__global__ void __launch_bounds__(kThreads) grad_vectors(const GradRows<T> a) {
  constexpr int kSize = 16 / sizeof(T);
  __shared__ float2 partial[2][kThreads / 32];
  int columns[kVectors];
  float w[kVectors][kSize] = {}, dw[kVectors][kSize] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    columns[v] = (v * kThreads + static_cast<int>(threadIdx.x)) * kSize;
    if (columns[v] < a.hidden) a.w.load(columns[v], w[v]);
  }
  const int64_t begin = int64_t{blockIdx.x} * a.rows_per_block, end = min(a.rows, begin + a.rows_per_block);
  RowVectors<T> next;
  next.load(a, begin, columns);
  for (int64_t row = begin; row < end; ++row) {
    const RowVectors<T> current = next;
    Vector<T, kSize> before[kVectors];
    if (row + 1 < end) next.load(a, row + 1, columns);
    float squares = 0.0f, projection = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (columns[v] >= a.hidden) continue;
      if (a.dx != nullptr && a.accumulate) before[v] = load_vector<kSize>(a.dx + row * a.hidden + columns[v]);
      float x[kSize], dy[kSize];
      widen(current.x[v], x);
      widen(current.dy[v], dy);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        squares += x[i] * x[i];
        projection += x[i] * (dy[i] * w[v][i]);
      }
    }
    const float2 sums = sum_pair<kThreads>(squares, projection, partial, static_cast<int>(row % 2));
    const float r = rsqrtf(sums.x / static_cast<float>(a.hidden) + a.eps);
    const float mean = sums.y * r / static_cast<float>(a.hidden);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (columns[v] >= a.hidden) continue;
      float x[kSize], dy[kSize], gradient[kSize];
      widen(current.x[v], x);
      widen(current.dy[v], dy);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        x[i] *= r;
        gradient[i] = r * (dy[i] * w[v][i] - x[i] * mean);
      }
      if constexpr (kWeightGrad) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) dw[v][i] += dy[i] * a.w.template factor<T>(x[i]);
      }
      if (a.dx == nullptr) continue;
      if (a.accumulate) {
        float values[kSize];
        widen(before[v], values);
#pragma unroll
        for (int i = 0; i < kSize; ++i) gradient[i] += values[i];
      }
      store_floats(a.dx + row * a.hidden + columns[v], gradient);
    }
  }
  if constexpr (kWeightGrad) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (columns[v] < a.hidden) store_floats(a.partial + int64_t{blockIdx.x} * a.hidden + columns[v], dw[v]);
    }
  }
}

constexpr int kGeneralThreads = 256;

/// As grad_vectors, for rows of any width.
template <class T>
__global__ void __launch_bounds__(kGeneralThreads) grad_general(const GradRows<T> a) {
  __shared__ float2 partial[2][kGeneralThreads / 32];
  const int64_t begin = int64_t{blockIdx.x} * a.rows_per_block, end = min(a.rows, begin + a.rows_per_block);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = a.x + row * a.hidden;
    const T* dy = a.dy + row * a.hidden;
    float squares = 0.0f, projection = 0.0f;
    for (int64_t i = threadIdx.x; i < a.hidden; i += kGeneralThreads) {
      const float value = to_float(x[i]);
      squares += value * value;
      projection += value * (to_float(dy[i]) * a.w.at(i));
    }
    const float2 sums = sum_pair<kGeneralThreads>(squares, projection, partial, static_cast<int>(row % 2));
    const float r = rsqrtf(sums.x / static_cast<float>(a.hidden) + a.eps);
    const float mean = sums.y * r / static_cast<float>(a.hidden);
    for (int64_t i = threadIdx.x; i < a.hidden; i += kGeneralThreads) {
      const float normalised = to_float(x[i]) * r, gradient = to_float(dy[i]);
      if (a.partial != nullptr) {
        float& dw = a.partial[int64_t{blockIdx.x} * a.hidden + i];
        dw = (row == begin ? 0.0f : dw) + gradient * a.w.template factor<T>(normalised);
      }
      if (a.dx == nullptr) continue;
      T& dx = a.dx[row * a.hidden + i];
      const float value = r * (gradient * a.w.at(i) - normalised * mean);
      dx = from_float<T>(a.accumulate ? value + to_float(dx) : value);
    }
  }
}

template <class T>
void launch_general(const Context& context, const GradRows<T>& rows) {
  grad_general<T><<<blocks_for(rows.rows, rows.rows_per_block), kGeneralThreads, 0, stream_of(context)>>>(rows);
}

template <class T, int kThreads = 32>
void launch_vectors(const Context& context, const GradRows<T>& rows) {
  constexpr int64_t kWidest = int64_t{kThreads} * kVectors * 16 / sizeof(T);
  if constexpr (kThreads < 1024) {
    if (rows.hidden > kWidest) return launch_vectors<T, 2 * kThreads>(context, rows);
  }
  if (rows.hidden > kWidest) return launch_general(context, rows);
  const auto kernel = rows.partial != nullptr ? &grad_vectors<T, kThreads, true> : &grad_vectors<T, kThreads, false>;
  kernel<<<blocks_for(rows.rows, rows.rows_per_block), kThreads, 0, stream_of(context)>>>(rows);
}

}  // namespace

void rms_norm_grad(const Context& context, const RmsNormGradArgs& args) {
  const int64_t count = args.x.shape[0], hidden = args.x.shape[1];
  const int64_t rows_per_block = args.dw.wanted() ? kRowsPerChunk : kRowsWithoutSums;
  const int64_t chunks = (count + rows_per_block - 1) / rows_per_block;
  ArenaScope scratch(context.scratch());
  Tensor partial;
  if (args.dw.wanted()) partial = scratch.take({chunks, hidden}, DType::kF32);
  if (context.dry() || hidden == 0) return;
  if (count > 0 && (args.dx.wanted() || args.dw.wanted())) {
    cuda::dispatch_float(args.x.dtype, [&](auto element) {
      using T = decltype(element);
      constexpr int64_t kSize = 16 / sizeof(T);
      const GradRows<T> rows{.x = elements<T>(args.x),
                             .w = NormWeight(args.w, args.weighting),
                             .dy = elements<T>(args.dy),
                             .dx = elements<T>(args.dx.dst),
                             .accumulate = args.dx.beta != 0.0f,
                             .partial = elements<float>(partial),
                             .rows = count,
                             .rows_per_block = rows_per_block,
                             .hidden = hidden,
                             .eps = args.eps};
      bool vectors = !context.stream().general_kernels();
      for (const Tensor& tensor : {args.x, args.w, args.dy, args.dx.dst}) {
        vectors = vectors && allows_vectors(tensor, hidden, kSize);
      }
      if (vectors) {
        launch_vectors(context, rows);
      } else {
        launch_general(context, rows);
      }
    });
    check_launch("differentiating rows' norms");
  }
  if (args.dw.wanted()) sum_chunks(context, partial, {args.dw});
}

}  // namespace hone::cuda
