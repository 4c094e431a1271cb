// A CTA has a group of a row, in backward of several rows: it takes the sums in a first pass over the group, and
// computes h again, from values that are in L2 by then, to write.
#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "ops/gated_group_norm/gated_group_norm.h"
#include "ops/rms_norm/norm_weight_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
/// Rows whose gradients of w a CTA sums.
constexpr int64_t kRowsPerChunk = 32;

template <class T>
struct GatedGroups {
  const T *x, *z;
  NormWeight w;
  int64_t rows;
  int groups, dim;
  float eps;

  explicit GatedGroups(const GatedGroupNormArgs& args)
      : x(elements<T>(args.x)),
        z(elements<T>(args.z)),
        w(args.w),
        rows(args.x.shape[0]),
        groups(static_cast<int>(args.groups)),
        dim(static_cast<int>(args.w.numel() / args.groups)),
        eps(args.eps) {}
};

template <class T>
struct GatedGroupGradients {
  const T* dy;
  T *dx, *dz;  // null: not wanted
  bool add_x, add_z;
  float* partial;  // [chunks, groups · D] or null
};

__device__ inline float sigmoid(float z) { return 1.0f / (1.0f + __expf(-z)); }

/// The sums of `a` and of `b` over a CTA, in every thread; fixed order.
__device__ inline float2 cta_sums(float a, float b) {
  __shared__ float2 sums[kWarps];
  const float of_a = warp_sum(a), of_b = warp_sum(b);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = {of_a, of_b};
  __syncthreads();
  float2 total = {0.0f, 0.0f};
  for (int warp = 0; warp < kWarps; ++warp) total.x += sums[warp].x, total.y += sums[warp].y;
  return total;
}

template <class T, int kVector>
__device__ void store_values(T* to, float (&values)[kVector], bool add) {
  if (add) {
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

template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) group_norm_kernel(const GatedGroups<T> in, T* y) {
  const int first = static_cast<int>(blockIdx.y) * in.dim;
  const int64_t row = int64_t{blockIdx.x} * in.groups * in.dim + first;
  const int from = static_cast<int>(threadIdx.x) * kVector;
  const auto gated = [&](int column, float(&h)[kVector]) {
    float z[kVector];
    load_floats(in.x + row + column, h);
    load_floats(in.z + row + column, z);
#pragma unroll
    for (int i = 0; i < kVector; ++i) h[i] *= z[i] * sigmoid(z[i]);
  };
  float squares = 0.0f;
  for (int column = from; column < in.dim; column += kThreads * kVector) {
    float h[kVector];
    gated(column, h);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares = fmaf(h[i], h[i], squares);
  }
  const float r = rsqrtf(cta_sums(squares, 0.0f).x / static_cast<float>(in.dim) + in.eps);
  for (int column = from; column < in.dim; column += kThreads * kVector) {
    float h[kVector];
    gated(column, h);
#pragma unroll
    for (int i = 0; i < kVector; ++i) h[i] = in.w.at(first + column + i) * rounded<T>(h[i] * r);
    store_values(y + row + column, h, false);
  }
}

template <class T, int kVector>
__global__ void __launch_bounds__(kThreads)
    group_norm_grad_kernel(const GatedGroups<T> in, const GatedGroupGradients<T> out) {
  extern __shared__ float dw[];  // [D], if wanted; a thread has the columns that it loads
  const int first = static_cast<int>(blockIdx.y) * in.dim, from = static_cast<int>(threadIdx.x) * kVector;
  const int64_t width = int64_t{in.groups} * in.dim, begin = int64_t{blockIdx.x} * kRowsPerChunk;
  const int64_t end = min(in.rows, begin + kRowsPerChunk);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * width + first;
    float squares = 0.0f, along = 0.0f;
    for (int column = from; column < in.dim; column += kThreads * kVector) {
      float x[kVector], z[kVector], dy[kVector];
      load_floats(in.x + at + column, x);
      load_floats(in.z + at + column, z);
      load_floats(out.dy + at + column, dy);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float h = x[i] * z[i] * sigmoid(z[i]);
        squares = fmaf(h, h, squares);
        along = fmaf(dy[i] * in.w.at(first + column + i), h, along);
      }
    }
    const float2 sums = cta_sums(squares, along);
    const float size = static_cast<float>(in.dim), r = rsqrtf(sums.x / size + in.eps), mean = r * r * sums.y / size;
    for (int column = from; column < in.dim; column += kThreads * kVector) {
      float x[kVector], z[kVector], dy[kVector];
      load_floats(in.x + at + column, x);
      load_floats(in.z + at + column, z);
      load_floats(out.dy + at + column, dy);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float s = sigmoid(z[i]), gate = z[i] * s, h = x[i] * gate;
        const float dh = r * (dy[i] * in.w.at(first + column + i) - h * mean);
        if (out.partial != nullptr) {
          const float term = dy[i] * rounded<T>(h * r);
          dw[column + i] = row == begin ? term : dw[column + i] + term;
        }
        z[i] = dh * x[i] * s * (1.0f + z[i] * (1.0f - s));
        x[i] = dh * gate;
      }
      if (out.dx != nullptr) store_values(out.dx + at + column, x, out.add_x);
      if (out.dz != nullptr) store_values(out.dz + at + column, z, out.add_z);
    }
  }
  if (out.partial == nullptr) return;
  for (int column = from; column < in.dim; column += kThreads * kVector) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) out.partial[blockIdx.x * width + first + column + i] = dw[column + i];
  }
}

/// Calls f with the elements of an access as a constant.
template <class F>
void with_vectors(const Context& context, int64_t dim, std::initializer_list<Tensor> tensors, F&& f) {
  bool vectors = !context.stream().general_kernels();
  for (const Tensor& tensor : tensors) vectors = vectors && allows_vectors(tensor, dim, 4);
  if (vectors) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 1>{});
}

}  // namespace

void gated_group_norm(const Context& context, const GatedGroupNormArgs& args) {
  if (context.dry() || args.x.numel() == 0) return;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    const GatedGroups<T> in(args);
    const dim3 grid(static_cast<unsigned>(in.rows), static_cast<unsigned>(in.groups));
    with_vectors(context, in.dim, {args.x, args.z, args.y}, [&](auto vector) {
      group_norm_kernel<T, vector><<<grid, kThreads, 0, stream_of(context)>>>(in, elements<T>(args.y));
    });
  });
  check_launch("normalising gated groups");
}

void gated_group_norm_grad(const Context& context, const GatedGroupNormGradArgs& args) {
  const int64_t width = args.forward.w.numel(), chunks = (args.dy.shape[0] + kRowsPerChunk - 1) / kRowsPerChunk;
  ArenaScope scratch(context.scratch());
  Tensor partial;
  if (args.dw.wanted()) partial = scratch.take({chunks, width}, DType::kF32);
  if (context.dry()) return;
  if (chunks > 0 && (args.dx.wanted() || args.dz.wanted() || args.dw.wanted())) {
    cuda::dispatch_float(args.dy.dtype, [&](auto element) {
      using T = decltype(element);
      const GatedGroups<T> in(args.forward);
      const GatedGroupGradients<T> out{.dy = elements<T>(args.dy),
                                       .dx = elements<T>(args.dx.dst),
                                       .dz = elements<T>(args.dz.dst),
                                       .add_x = args.dx.beta != 0.0f,
                                       .add_z = args.dz.beta != 0.0f,
                                       .partial = elements<float>(partial)};
      const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(in.groups));
      const size_t shared = partial.defined() ? static_cast<size_t>(in.dim) * sizeof(float) : 0;
      with_vectors(context, in.dim, {args.forward.x, args.forward.z, args.dy, args.dx.dst, args.dz.dst},
                   [&](auto vector) {
                     group_norm_grad_kernel<T, vector><<<grid, kThreads, shared, stream_of(context)>>>(in, out);
                   });
    });
    check_launch("differentiating gated groups");
  }
  if (args.dw.wanted()) sum_chunks(context, partial, {args.dw});
}

}  // namespace hone::cuda
