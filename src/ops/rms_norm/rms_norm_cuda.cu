#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/rms_norm/norm_weight_cuda.h"
#include "ops/rms_norm/rms_norm.h"

namespace hone::cuda {

namespace {

template <class T>
struct NormRows {
  const T* x;
  const T* delta;  // null: normalise x
  float delta_scale;
  T* sum;
  NormWeight w;
  T* y;
  int64_t rows, hidden;
  float eps;
};

/// 16-byte vectors of a row that a thread keeps, so that a row is read once.
constexpr int kVectors = 4;

constexpr int block_of(int row_threads) { return row_threads < 256 ? 256 : row_threads; }

/// kThreads threads per row.
template <class T, int kThreads>
__global__ void __launch_bounds__(block_of(kThreads)) norm_vectors(const NormRows<T> a) {
  constexpr int kSize = 16 / sizeof(T), kWarps = kThreads / 32;
  __shared__ float partial[block_of(kThreads) / 32];
  const int thread = static_cast<int>(threadIdx.x) % kThreads, group = static_cast<int>(threadIdx.x) / kThreads;
  const int64_t row = int64_t{blockIdx.x} * (block_of(kThreads) / kThreads) + group;
  const auto column = [&](int v) { return (v * kThreads + thread) * kSize; };
  const bool present = row < a.rows;
  Vector<T, kSize> x[kVectors];
  float squares = 0.0f;
  if (present) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) < a.hidden) x[v] = load_vector<kSize>(a.x + row * a.hidden + column(v));
    }
    if (a.delta != nullptr) {
      Vector<T, kSize> delta[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (column(v) < a.hidden) delta[v] = load_vector<kSize>(a.delta + row * a.hidden + column(v));
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (column(v) >= a.hidden) continue;
        float sum[kSize], values[kSize];
        widen(x[v], sum);
        widen(delta[v], values);
#pragma unroll
        for (int i = 0; i < kSize; ++i) sum[i] += scaled<T>(a.delta_scale, values[i]);
        x[v] = narrow<T>(sum);
        store_vector(a.sum + row * a.hidden + column(v), x[v]);
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= a.hidden) continue;
      float values[kSize];
      widen(x[v], values);
#pragma unroll
      for (int i = 0; i < kSize; ++i) squares += values[i] * values[i];
    }
  }
  squares = warp_sum(squares);
  if constexpr (kWarps > 1) {
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) squares += partial[group * kWarps + warp];
  }
  if (!present) return;
  const float r = rsqrtf(squares / static_cast<float>(a.hidden) + a.eps);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column(v) >= a.hidden) continue;
    float values[kSize], w[kSize];
    widen(x[v], values);
    a.w.load(column(v), w);
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] *= r;
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = a.w.template factor<T>(values[i]) * w[i];
    store_floats(a.y + row * a.hidden + column(v), values);
  }
}

constexpr int kGeneralThreads = 256;

/// One CTA per row, of any width.
template <class T>
__global__ void __launch_bounds__(kGeneralThreads) norm_general(const NormRows<T> a) {
  __shared__ float partial[kGeneralThreads / 32];
  const int64_t begin = int64_t{blockIdx.x} * a.hidden;
  const auto value_at = [&](int64_t i) {
    if (a.delta == nullptr) return to_float(a.x[begin + i]);
    return rounded<T>(to_float(a.x[begin + i]) + scaled<T>(a.delta_scale, to_float(a.delta[begin + i])));
  };
  float squares = 0.0f;
  for (int64_t i = threadIdx.x; i < a.hidden; i += kGeneralThreads) {
    const float value = value_at(i);
    squares += value * value;
  }
  squares = block_sum<kGeneralThreads>(squares, partial);
  const float r = rsqrtf(squares / static_cast<float>(a.hidden) + a.eps);
  for (int64_t i = threadIdx.x; i < a.hidden; i += kGeneralThreads) {
    const float value = value_at(i);
    if (a.delta != nullptr) a.sum[begin + i] = from_float<T>(value);
    a.y[begin + i] = from_float<T>(a.w.template factor<T>(value * r) * a.w.at(i));
  }
}

template <class T, int kThreads = 32>
void launch_vectors(const Context& context, const NormRows<T>& rows) {
  constexpr int64_t kWidest = int64_t{kThreads} * kVectors * 16 / sizeof(T);
  if constexpr (kThreads < 1024) {
    if (rows.hidden > kWidest) return launch_vectors<T, 2 * kThreads>(context, rows);
  }
  if (rows.hidden > kWidest) {
    norm_general<T><<<blocks_for(rows.rows, 1), kGeneralThreads, 0, stream_of(context)>>>(rows);
  } else {
    norm_vectors<T, kThreads>
        <<<blocks_for(rows.rows, block_of(kThreads) / kThreads), block_of(kThreads), 0, stream_of(context)>>>(rows);
  }
}

}  // namespace

void rms_norm(const Context& context, const RmsNormArgs& args) {
  const int64_t count = args.x.shape[0], hidden = args.x.shape[1];
  if (context.dry() || count == 0 || hidden == 0) return;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int64_t kSize = 16 / sizeof(T);
    const NormRows<T> rows{.x = elements<T>(args.x),
                           .delta = elements<T>(args.delta),
                           .delta_scale = args.delta_scale,
                           .sum = elements<T>(args.sum),
                           .w = NormWeight(args.w, args.weighting),
                           .y = elements<T>(args.y),
                           .rows = count,
                           .hidden = hidden,
                           .eps = args.eps};
    bool vectors = !context.stream().general_kernels();
    for (const Tensor& tensor : {args.x, args.delta, args.sum, args.w, args.y}) {
      vectors = vectors && allows_vectors(tensor, hidden, kSize);
    }
    if (vectors) {
      launch_vectors(context, rows);
    } else {
      norm_general<T><<<blocks_for(count, 1), kGeneralThreads, 0, stream_of(context)>>>(rows);
    }
  });
  check_launch("normalising rows");
}

}  // namespace hone::cuda
