// One CTA per token. Uses 16-byte vectors if all sizes are multiples of them, else single elements.
#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/latent_heads/latent_heads.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;
/// dshared: columns processed at a time; the heads are distributed over kThreads / kColumns threads per column.
constexpr int kColumns = 64, kParts = kThreads / kColumns;

/// Sizes in vectors.
struct Sizes {
  int heads, nope, rope, v;

  Sizes(const LatentHeadSizes& sizes, int64_t vector)
      : heads(static_cast<int>(sizes.heads)),
        nope(static_cast<int>(sizes.nope_dim / vector)),
        rope(static_cast<int>(sizes.rope_dim / vector)),
        v(static_cast<int>(sizes.v_dim / vector)) {}
  __host__ __device__ int kv_width() const { return heads * (nope + v); }
  __host__ __device__ int k_width() const { return heads * (nope + rope); }
  __host__ __device__ int v_width() const { return heads * v; }
};

/// V is the vector that a thread moves at a time.
template <class V>
__global__ void __launch_bounds__(kThreads) forward_kernel(Sizes s, const V* kv, const V* shared, V* k, V* v) {
  const int64_t token = blockIdx.x;
  kv += token * s.kv_width();
  shared += token * s.rope;
  k += token * s.k_width();
  v += token * s.v_width();
  for (int i = threadIdx.x; i < s.k_width(); i += kThreads) {
    const int head = i / (s.nope + s.rope), column = i - head * (s.nope + s.rope);
    k[i] = column < s.nope ? kv[head * (s.nope + s.v) + column] : shared[column - s.nope];
  }
  for (int i = threadIdx.x; i < s.v_width(); i += kThreads) {
    const int head = i / s.v;
    v[i] = kv[head * s.nope + s.nope + i];
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) dkv_kernel(Sizes s, const T* dk, const T* dv, T* dkv, bool accumulate) {
  const int64_t token = blockIdx.x;
  dk += token * s.k_width() * kWidth;
  dv += token * s.v_width() * kWidth;
  dkv += token * s.kv_width() * kWidth;
  for (int i = threadIdx.x; i < s.kv_width(); i += kThreads) {
    const int head = i / (s.nope + s.v), column = i - head * (s.nope + s.v);
    const T* from = column < s.nope ? dk + (head * (s.nope + s.rope) + column) * kWidth
                                    : dv + (head * s.v + column - s.nope) * kWidth;
    Vector<T, kWidth> gradient = load_vector<kWidth>(from);
    if (accumulate) {
      float sum[kWidth], before[kWidth];
      widen(gradient, sum);
      load_floats(dkv + i * kWidth, before);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += before[j];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) dkv[i * kWidth + j] = from_float<T>(sum[j]);
    } else {
      store_vector(dkv + i * kWidth, gradient);
    }
  }
}

/// Sums each part of the heads in order, then the parts. Sizes are in elements.
template <class T>
__global__ void __launch_bounds__(kThreads) dshared_kernel(Sizes s, const T* dk, T* dshared, bool accumulate) {
  __shared__ float sums[kParts][kColumns];
  const int64_t token = blockIdx.x;
  const int lane = threadIdx.x % kColumns, part = threadIdx.x / kColumns;
  dk += token * s.k_width() + s.nope;
  dshared += token * s.rope;
  for (int begin = 0; begin < s.rope; begin += kColumns) {
    const int column = begin + lane;
    float sum = 0.0f;
    if (column < s.rope) {
#pragma unroll 8
      for (int head = part; head < s.heads; head += kParts) sum += to_float(dk[head * (s.nope + s.rope) + column]);
    }
    __syncthreads();
    sums[part][lane] = sum;
    __syncthreads();
    if (part != 0 || column >= s.rope) continue;
    sum = accumulate ? to_float(dshared[column]) : 0.0f;
#pragma unroll
    for (int i = 0; i < kParts; ++i) sum += sums[i][lane];
    dshared[column] = from_float<T>(sum);
  }
}

/// Whether all sizes are multiples of 16-byte vectors.
bool allows_whole_vectors(const Context& context, const LatentHeadSizes& sizes, std::initializer_list<Tensor> tensors) {
  bool vectors = !context.stream().general_kernels();
  for (const Tensor& tensor : tensors) {
    const int64_t elements = 16 / static_cast<int64_t>(size_of(tensor.dtype));
    for (const int64_t size : {sizes.nope_dim, sizes.rope_dim, sizes.v_dim}) {
      vectors = vectors && allows_vectors(tensor, size, elements);
    }
  }
  return vectors;
}

}  // namespace

void latent_heads(const Context& context, const LatentHeadsArgs& args) {
  const int64_t tokens = args.kv.shape[0];
  if (context.dry() || tokens == 0) return;
  const bool vectors = allows_whole_vectors(context, args.sizes, {args.kv, args.shared, args.k, args.v});
  const auto launch = [&](auto unit, int64_t elements) {
    using V = decltype(unit);
    forward_kernel<V><<<blocks_for(tokens, 1), kThreads, 0, stream_of(context)>>>(
        Sizes(args.sizes, elements), reinterpret_cast<const V*>(args.kv.data),
        reinterpret_cast<const V*>(args.shared.data), reinterpret_cast<V*>(args.k.data),
        reinterpret_cast<V*>(args.v.data));
  };
  const auto size = static_cast<int64_t>(size_of(args.kv.dtype));
  if (vectors) {
    launch(uint4{}, 16 / size);
  } else if (size == 4) {
    launch(uint32_t{}, 1);
  } else {
    launch(uint16_t{}, 1);
  }
  check_launch("assembling latent heads");
}

void latent_heads_grad(const Context& context, const LatentHeadsGradArgs& args) {
  const int64_t tokens = args.dk.shape[0];
  if (context.dry() || tokens == 0) return;
  const unsigned blocks = blocks_for(tokens, 1);
  cuda::dispatch_float(args.dk.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kVector = 16 / sizeof(T);
    if (args.dkv.wanted()) {
      const bool vectors = allows_whole_vectors(context, args.sizes, {args.dk, args.dv, args.dkv.dst});
      const auto kernel = vectors ? &dkv_kernel<T, kVector> : &dkv_kernel<T, 1>;
      kernel<<<blocks, kThreads, 0, stream_of(context)>>>(Sizes(args.sizes, vectors ? kVector : 1),
                                                          elements<T>(args.dk), elements<T>(args.dv),
                                                          elements<T>(args.dkv.dst), args.dkv.beta != 0.0f);
    }
    if (args.dshared.wanted()) {
      dshared_kernel<T><<<blocks, kThreads, 0, stream_of(context)>>>(
          Sizes(args.sizes, 1), elements<T>(args.dk), elements<T>(args.dshared.dst), args.dshared.beta != 0.0f);
    }
  });
  check_launch("differentiating latent heads");
}

}  // namespace hone::cuda
