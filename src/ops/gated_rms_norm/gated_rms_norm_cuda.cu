#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/rms_norm/norm_weight_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
/// Rows whose gradients of w a CTA sums.
constexpr int64_t kRowsPerChunk = 512;

template <class T>
struct GatedRows {
  const T* x;
  const T* z;
  NormWeight w;
  T* y;         // forward
  const T* dy;  // backward
  T* dx;        // null: not wanted; also dz
  T* dz;
  bool dx_accumulate, dz_accumulate;
  float* partial;  // [chunks, D] or null
  int64_t rows;
  int dim;
  float eps;
};

__device__ inline float sigmoid(float z) { return 1.0f / (1.0f + __expf(-z)); }

/// A warp's row: lane l holds kVector elements from (v · 32 + l) · kVector on, for each v < kCount.
template <int kVector, int kCount>
struct Place {
  int dim;
  __device__ int column(int v) const { return (v * 32 + static_cast<int>(threadIdx.x % 32)) * kVector; }
  __device__ bool has(int v) const { return column(v) < dim; }
};

template <class T, int kVector>
__device__ void store_gradient(T* to, float (&values)[kVector], bool accumulate) {
  if (accumulate) {
    float before[kVector];
    load_floats(to, before);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += before[i];
  }
  if constexpr (kVector == 1) {
    *to = from_float<T>(values[0]);
  } else {
    store_floats(to, values);
  }
}

/// A row's x, and 1 / rms of it.
template <class T, int kVector, int kCount>
__device__ float load_row(const GatedRows<T>& a, const Place<kVector, kCount>& place, int64_t row,
                          float (&x)[kCount][kVector]) {
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
    if (!place.has(v)) continue;
    load_floats(a.x + row * a.dim + place.column(v), x[v]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += x[v][i] * x[v][i];
  }
  return rsqrtf(warp_sum(squares) / static_cast<float>(a.dim) + a.eps);
}

template <class T, int kVector, int kCount>
__global__ void __launch_bounds__(kThreads) gated_norm_kernel(const GatedRows<T> a) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const Place<kVector, kCount> place{a.dim};
  float x[kCount][kVector];
  const float r = load_row(a, place, row, x);
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
    if (!place.has(v)) continue;
    const int64_t at = row * a.dim + place.column(v);
    float z[kVector];
    load_floats(a.z + at, z);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float t = rounded<T>(a.w.at(place.column(v) + i) * rounded<T>(x[v][i] * r));
      z[i] *= t * sigmoid(z[i]);
    }
    store_gradient(a.y + at, z, false);
  }
}

template <class T, int kVector, int kCount>
__global__ void __launch_bounds__(kThreads) gated_norm_grad_kernel(const GatedRows<T> a) {
  extern __shared__ float sums[];  // [kWarps, D]
  const Place<kVector, kCount> place{a.dim};
  const int warp = static_cast<int>(threadIdx.x / 32);
  float dw[kCount][kVector] = {}, w[kCount][kVector] = {};
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (place.has(v)) w[v][i] = a.w.at(place.column(v) + i);
    }
  }
  const int64_t begin = int64_t{blockIdx.x} * kRowsPerChunk, end = min(a.rows, begin + kRowsPerChunk);
  for (int64_t row = begin + warp; row < end; row += kWarps) {
    float x[kCount][kVector] = {}, g[kCount][kVector] = {};
    const float r = load_row(a, place, row, x);
    float projection = 0.0f;
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      if (!place.has(v)) continue;
      const int64_t at = row * a.dim + place.column(v);
      float z[kVector], dy[kVector];
      load_floats(a.z + at, z);
      load_floats(a.dy + at, dy);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float s = sigmoid(z[i]), dt = dy[i] * z[i] * s;
        x[v][i] *= r;
        const float n = rounded<T>(x[v][i]);
        dw[v][i] = fmaf(dt, n, dw[v][i]);
        z[i] = dy[i] * rounded<T>(w[v][i] * n) * s * (1.0f + z[i] * (1.0f - s));
        g[v][i] = dt * w[v][i];
        projection = fmaf(g[v][i], x[v][i], projection);
      }
      if (a.dz != nullptr) store_gradient(a.dz + at, z, a.dz_accumulate);
    }
    const float mean = warp_sum(projection) / static_cast<float>(a.dim);
    if (a.dx == nullptr) continue;
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      if (!place.has(v)) continue;
#pragma unroll
      for (int i = 0; i < kVector; ++i) g[v][i] = r * (g[v][i] - x[v][i] * mean);
      store_gradient(a.dx + row * a.dim + place.column(v), g[v], a.dx_accumulate);
    }
  }
  if (a.partial == nullptr) return;
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (place.has(v)) sums[warp * a.dim + place.column(v) + i] = dw[v][i];
    }
  }
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < a.dim; column += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) sum += sums[other * a.dim + column];
    a.partial[int64_t{blockIdx.x} * a.dim + column] = sum;
  }
}

/// Calls f with the elements of an access and the accesses per row as constants.
template <class T, class F>
void with_width(const Context& context, int64_t dim, std::initializer_list<Tensor> tensors, F&& f) {
  bool vectors = !context.stream().general_kernels() && dim <= 256;
  for (const Tensor& tensor : tensors) vectors = vectors && allows_vectors(tensor, dim, 4);
  if (vectors && dim <= 128) return f(std::integral_constant<int, 4>{}, std::integral_constant<int, 1>{});
  if (vectors) return f(std::integral_constant<int, 4>{}, std::integral_constant<int, 2>{});
  if (dim <= 128) return f(std::integral_constant<int, 1>{}, std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 1>{}, std::integral_constant<int, static_cast<int>(kMaxGatedNorm) / 32>{});
}

}  // namespace

void gated_rms_norm(const Context& context, const GatedRmsNormArgs& args) {
  if (context.dry() || args.x.numel() == 0) return;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    GatedRows<T> rows{};
    rows.x = elements<T>(args.x);
    rows.z = elements<T>(args.z);
    rows.w = NormWeight(args.w);
    rows.y = elements<T>(args.y);
    rows.rows = args.x.numel() / args.w.numel();
    rows.dim = static_cast<int>(args.w.numel());
    rows.eps = args.eps;
    with_width<T>(context, rows.dim, {args.x, args.z, args.y}, [&](auto vector, auto count) {
      gated_norm_kernel<T, vector, count><<<blocks_for(rows.rows, kWarps), kThreads, 0, stream_of(context)>>>(rows);
    });
  });
  check_launch("normalising gated heads");
}

void gated_rms_norm_grad(const Context& context, const GatedRmsNormGradArgs& args) {
  const int64_t dim = args.w.numel(), count = args.x.numel() / dim;
  const int64_t chunks = (count + kRowsPerChunk - 1) / kRowsPerChunk;
  ArenaScope scratch(context.scratch());
  Tensor partial;
  if (args.dw.wanted()) partial = scratch.take({chunks, dim}, DType::kF32);
  if (context.dry()) return;
  if (count > 0 && (args.dx.wanted() || args.dz.wanted() || args.dw.wanted())) {
    cuda::dispatch_float(args.x.dtype, [&](auto element) {
      using T = decltype(element);
      const GatedRows<T> rows{.x = elements<T>(args.x),
                              .z = elements<T>(args.z),
                              .w = NormWeight(args.w),
                              .y = nullptr,
                              .dy = elements<T>(args.dy),
                              .dx = elements<T>(args.dx.dst),
                              .dz = elements<T>(args.dz.dst),
                              .dx_accumulate = args.dx.beta != 0.0f,
                              .dz_accumulate = args.dz.beta != 0.0f,
                              .partial = elements<float>(partial),
                              .rows = count,
                              .dim = static_cast<int>(dim),
                              .eps = args.eps};
      with_width<T>(context, dim, {args.x, args.z, args.dy, args.dx.dst, args.dz.dst}, [&](auto vector, auto width) {
        gated_norm_grad_kernel<T, vector, width>
            <<<blocks_for(count, kRowsPerChunk), kThreads, kWarps* static_cast<size_t>(dim) * sizeof(float),
               stream_of(context)>>>(rows);
      });
    });
    check_launch("differentiating gated norms");
  }
  if (args.dw.wanted()) sum_chunks(context, partial, {args.dw});
}

}  // namespace hone::cuda
