#include <algorithm>

#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "ops/qk_norm_rope/head_rows_cuda.h"
#include "ops/qk_norm_rope/neighbours_cuda.h"

namespace hone::cuda {

namespace {

/// Heads per CTA of the general kernel.
constexpr int64_t kHeadsPerChunk = 512;

/// Items (a token and a group of its heads) per warp of the kernels for common sizes. With a weight gradient, as many
/// as leave about 1024 CTAs, so that adding their sums is cheap; depends only on the shape.
constexpr int64_t kMaxChunks = 2048;

int64_t items_per_warp(int64_t items, bool weight_grad) {
  constexpr int64_t kWarps = int64_t{1024} * kHeadWarps;
  return weight_grad ? std::max<int64_t>(1, items / kWarps) : 2;
}

template <class T>
struct HeadGrads {
  HeadRows<T> forward;
  const T* dy;
  T* dx;  // null: not wanted
  bool accumulate;
  float* partial;  // [chunks, head_dim], or null
  uint32_t items_per_warp;
};

template <class T>
__device__ void store_gradient(const HeadGrads<T>& a, int64_t offset, const Vector<T, kHalfValues>& before,
                               HalfValues& gradient) {
  if (a.accumulate) {
    HalfValues values;
    widen(before, values);
#pragma unroll
    for (int i = 0; i < kHalfValues; ++i) gradient[i] += values[i];
  }
  store_floats(a.dx + offset, gradient);
}

/// With z = w · round(n), n = x · r: dx = r · (dz · w - n · mean(dz · w · n)), dw = Σ dz · round(n); with kFromOne n is
/// not rounded.
template <class T, int kDim, bool kNorm, bool kWeightGrad>
__global__ void __launch_bounds__(kHeadThreads, kWeightGrad ? 2 : 3) backward_vectors(const HeadGrads<T> a) {
  constexpr int kHalf = kDim / 2, kLanes = kDim / 16;
  HalfValues w[2], dw[2] = {};
  const int column = static_cast<int>(threadIdx.x) % kLanes * kHalfValues;
  const auto load_weight = [&] {
    a.forward.norm.load(column, w[0]);
    a.forward.norm.load(column + kHalf, w[1]);
  };
  if constexpr (kWeightGrad) load_weight();
  const uint32_t items = static_cast<uint32_t>(a.forward.tokens) * a.forward.warps_per_token;
  const uint32_t begin = blockIdx.x * a.items_per_warp * kHeadWarps;
  const uint32_t end = min(items, begin + a.items_per_warp * kHeadWarps);
  for (uint32_t item = begin + threadIdx.x / 32; item < end; item += kHeadWarps) {
    const HeadPlace<kDim, 1> place(a.forward, item);
    const bool present = place.has(0);
    const int64_t offset = place.offset(0);
    HeadPart<T> x_part, dy_part, before;
    if (present) {
      dy_part.load(a.dy + offset, kHalf);
      if constexpr (kNorm) x_part.load(a.forward.x + offset, kHalf);
      if (a.dx != nullptr && a.accumulate) before.load(a.dx + offset, kHalf);
    }
    HalfValues dz[2];
    {
      Angles angles;
      a.forward.load_angles(place.token, column, angles);
      widen(dy_part.first, dz[0]);
      widen(dy_part.second, dz[1]);
      turn(angles, -1.0f, dz[0], dz[1]);
    }
    if constexpr (kNorm) {
      if constexpr (!kWeightGrad) load_weight();  // reloaded for each item, which saves registers
      const auto x = [&](int part, int i) { return element(part == 0 ? x_part.first : x_part.second, i); };
      float squares = 0.0f, projection = 0.0f;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int i = 0; i < kHalfValues; ++i) {
          const float gradient = dz[part][i] * w[part][i];
          squares += x(part, i) * x(part, i);
          projection += x(part, i) * gradient;
          if constexpr (!kWeightGrad) dz[part][i] = gradient;
        }
      }
      squares = lanes_sum<kLanes>(squares);
      projection = lanes_sum<kLanes>(projection);
      const float r = rsqrtf(squares / kDim + a.forward.eps), mean = projection * r / kDim;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int i = 0; i < kHalfValues; ++i) {
          const float n = x(part, i) * r;
          if constexpr (kWeightGrad) {
            if (present) dw[part][i] += dz[part][i] * a.forward.norm.template factor<T>(n);
            dz[part][i] *= w[part][i];
          }
          dz[part][i] = r * (dz[part][i] - n * mean);
        }
      }
    }
    if (!present || a.dx == nullptr) continue;
    store_gradient(a, offset, before.first, dz[0]);
    store_gradient(a, offset + kHalf, before.second, dz[1]);
  }
  if constexpr (kWeightGrad) {
    constexpr int kGroups = kHeadThreads / kLanes;  // groups of lanes with one head each
    __shared__ alignas(16) float sums[kGroups][kDim];
    float* own = sums[threadIdx.x / kLanes] + column;
    store_floats(own, dw[0]);
    store_floats(own + kHalf, dw[1]);
    __syncthreads();
    if (threadIdx.x >= kDim) return;
    float sum = 0.0f;
#pragma unroll 8
    for (int group = 0; group < kGroups; ++group) sum += sums[group][threadIdx.x];
    a.partial[int64_t{blockIdx.x} * kDim + threadIdx.x] = sum;
  }
}

/// One warp per head, of any size and any number of rotated pairs. Shared memory: [warps, head_dim] floats with a
/// weight gradient.
template <class T>
__global__ void __launch_bounds__(kHeadThreads) backward_general(const HeadGrads<T> a) {
  extern __shared__ float sums[];
  const HeadRows<T>& rows = a.forward;
  const int64_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = rows.head_dim;
  float* dw = sums + warp * dim;
  if (a.partial != nullptr) {
    for (int64_t i = lane; i < dim; i += 32) dw[i] = 0.0f;
  }
  const int64_t begin = int64_t{blockIdx.x} * kHeadsPerChunk;
  const int64_t end = min(rows.tokens * rows.heads, begin + kHeadsPerChunk);
  const bool norm = rows.norm.values != nullptr;
  for (int64_t head = begin + warp; head < end; head += kHeadWarps) {
    const T* x = rows.x + head * dim;
    const T* dy = a.dy + head * dim;
    const auto dz = [&](int64_t i) {
      const float own = to_float(dy[i]);
      const int64_t at = i - rows.layout.offset, distance = rows.pair_distance();
      if (at < 0 || at >= 2 * rows.half) return own;
      const bool first = at / distance % 2 == 0;
      const float2 angle = rows.angle(head / rows.heads, rows.layout.interleaved ? at / 2 : at % rows.half);
      const float other = to_float(dy[first ? i + distance : i - distance]);
      return own * angle.x + (first ? other : -other) * angle.y;
    };
    float r = 0.0f, mean = 0.0f;
    if (norm) {
      float squares = 0.0f, projection = 0.0f;
      for (int64_t i = lane; i < dim; i += 32) {
        const float value = to_float(x[i]);
        squares += value * value;
        projection += value * (dz(i) * rows.norm.at(i));
      }
      r = rsqrtf(warp_sum(squares) / static_cast<float>(dim) + rows.eps);
      mean = warp_sum(projection) * r / static_cast<float>(dim);
    }
    for (int64_t i = lane; i < dim; i += 32) {
      float gradient = dz(i);
      if (norm) {
        const float normed = to_float(x[i]) * r;
        if (a.partial != nullptr) dw[i] += gradient * rows.norm.template factor<T>(normed);
        gradient = r * (gradient * rows.norm.at(i) - normed * mean);
      }
      if (a.dx == nullptr) continue;
      T& dx = a.dx[head * dim + i];
      dx = from_float<T>(a.accumulate ? gradient + to_float(dx) : gradient);
    }
  }
  if (a.partial == nullptr) return;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < dim; i += kHeadThreads) {
    float sum = 0.0f;
    for (int w = 0; w < kHeadWarps; ++w) sum += sums[w * dim + i];
    a.partial[int64_t{blockIdx.x} * dim + i] = sum;
  }
}

template <class T>
void launch_vectors(const Context& context, const HeadGrads<T>& grads) {
  const int64_t items = grads.forward.tokens * grads.forward.warps_per_token;
  const bool norm = grads.forward.norm.values != nullptr, sums = grads.partial != nullptr;
  const unsigned blocks = blocks_for(items, grads.items_per_warp * kHeadWarps);
  with_head_dim(grads.forward.head_dim, [&](auto dim) {
    const auto kernel = sums   ? &backward_vectors<T, dim(), true, true>
                        : norm ? &backward_vectors<T, dim(), true, false>
                               : &backward_vectors<T, dim(), false, false>;
    kernel<<<blocks, kHeadThreads, 0, stream_of(context)>>>(grads);
  });
}

}  // namespace

void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args) {
  const QkNormRopeArgs& forward = args.forward;
  const int64_t tokens = args.dy.shape[0], heads = args.dy.shape[1] / forward.head_dim, dim = forward.head_dim;
  constexpr int64_t kMaxHeadDim = 1024;  // shared memory of the general kernel
  HONE_ASSERT(dim <= kMaxHeadDim && (forward.norm.defined() || !args.dnorm.wanted()));
  const bool vectors = allows_head_vectors(context, forward, {forward.x, args.dy, args.dx.dst});
  const int64_t items = tokens * warps_per_token(heads, dim, 1), per_warp = items_per_warp(items, args.dnorm.wanted());
  HONE_ASSERT(!vectors || items <= INT32_MAX);
  const int64_t general_chunks = (tokens * heads + kHeadsPerChunk - 1) / kHeadsPerChunk;
  const int64_t chunks = vectors ? (items + per_warp * kHeadWarps - 1) / (per_warp * kHeadWarps) : general_chunks;
  ArenaScope scratch(context.scratch());
  Tensor partial;
  if (args.dnorm.wanted()) {
    // Fewer items may need more chunks: the scratch of a dry pass with the largest shape must suffice for all.
    const int64_t most = std::max(std::min((items + kHeadWarps - 1) / kHeadWarps, kMaxChunks), general_chunks);
    HONE_ASSERT(chunks <= most);
    partial = scratch.take({most, dim}, DType::kF32);
    partial.shape = {chunks, dim};
  }
  if (context.dry()) return;
  if (tokens > 0 && args.dx.wanted() && allows_turning_neighbours(context, forward, args.dy, args.dx.dst)) {
    return turn_neighbours(context, forward, args.dy, args.dx, -1.0f);
  }
  if (tokens > 0 && (args.dx.wanted() || args.dnorm.wanted())) {
    cuda::dispatch_float(args.dy.dtype, [&](auto element) {
      using T = decltype(element);
      HeadGrads<T> grads{.forward = head_rows<T>(forward, tokens, args.dy.shape[1]),
                         .dy = elements<T>(args.dy),
                         .dx = elements<T>(args.dx.dst),
                         .accumulate = args.dx.beta != 0.0f,
                         .partial = elements<float>(partial),
                         .items_per_warp = static_cast<uint32_t>(per_warp)};
      if (vectors) {
        grads.forward.warps_per_token = warps_per_token(heads, dim, 1);
        launch_vectors(context, grads);
      } else {
        const size_t shared = args.dnorm.wanted() ? static_cast<size_t>(kHeadWarps * dim) * sizeof(float) : 0;
        backward_general<T><<<blocks_for(chunks, 1), kHeadThreads, shared, stream_of(context)>>>(grads);
      }
    });
    check_launch("differentiating rotated heads");
  }
  if (args.dnorm.wanted()) sum_chunks(context, partial, {args.dnorm});
}

}  // namespace hone::cuda
