#include "ops/qk_norm_rope/head_rows_cuda.h"
#include "ops/qk_norm_rope/neighbours_cuda.h"

namespace hone::cuda {

namespace {

/// values = w · round(values · r) or w · values · r, rounded.
template <class T>
__device__ void normalise(HalfValues& values, float r, const NormWeight& norm, const HalfValues& w) {
#pragma unroll
  for (int i = 0; i < kHalfValues; ++i) values[i] = norm.factor<T>(values[i] * r) * w[i];
  widen(narrow<T>(values), values);
}

/// A thread has parts of kHeads heads. y may be x: a thread only reads the elements that it writes.
template <class T, int kDim, int kHeads>
__device__ void forward_block(const HeadRows<T>& a, T* y, uint32_t block) {
  const uint32_t item = block * kHeadWarps + threadIdx.x / 32;
  if (item >= a.tokens * a.warps_per_token) return;
  const HeadPlace<kDim, kHeads> place(a, item);
  HeadPart<T> x[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (place.has(h)) x[h].load(a.x + place.offset(h), kDim / 2);
  }
  Angles angles;
  a.load_angles(place.token, place.column, angles);
  HalfValues w_first, w_second;
  const bool has_norm = a.norm.values != nullptr;
  if (has_norm) {
    a.norm.load(place.column, w_first);
    a.norm.load(place.column + kDim / 2, w_second);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    HalfValues first, second;
    widen(x[h].first, first);
    widen(x[h].second, second);
    if (has_norm) {
      const float squares = lanes_sum<kDim / 16>(dot(first, first) + dot(second, second));
      const float r = rsqrtf(squares / kDim + a.eps);
      normalise<T>(first, r, a.norm, w_first);
      normalise<T>(second, r, a.norm, w_second);
    }
    turn(angles, 1.0f, first, second);
    if (!place.has(h)) continue;
    store_floats(y + place.offset(h), first);
    store_floats(y + place.offset(h) + kDim / 2, second);
  }
}

template <class T, int kDim, int kHeads>
__global__ void __launch_bounds__(kHeadThreads) forward_vectors(const HeadRows<T> a, T* y) {
  forward_block<T, kDim, kHeads>(a, y, blockIdx.x);
}

/// Queries, and from block `blocks_of_q` on keys.
template <class T, int kDim>
__global__ void __launch_bounds__(kHeadThreads)
    forward_pair(const HeadRows<T> q, T* to_q, uint32_t blocks_of_q, const HeadRows<T> k, T* to_k) {
  if (blockIdx.x < blocks_of_q) return forward_block<T, kDim, 1>(q, to_q, blockIdx.x);
  forward_block<T, kDim, 1>(k, to_k, blockIdx.x - blocks_of_q);
}

/// One warp per head, of any size and any number of rotated pairs. y may be x: a lane reads a pair before it writes it.
template <class T>
__global__ void __launch_bounds__(kHeadThreads) forward_general(const HeadRows<T> a, T* y) {
  const int64_t item = int64_t{blockIdx.x} * kHeadWarps + threadIdx.x / 32;
  if (item >= a.tokens * a.heads) return;
  const T* x = a.x + item * a.head_dim;
  y += item * a.head_dim;
  const int64_t lane = threadIdx.x % 32;
  float r = 0.0f;
  if (a.norm.values != nullptr) {
    float squares = 0.0f;
    for (int64_t i = lane; i < a.head_dim; i += 32) squares += to_float(x[i]) * to_float(x[i]);
    r = rsqrtf(warp_sum(squares) / static_cast<float>(a.head_dim) + a.eps);
  }
  const auto z = [&](int64_t i) {
    const float value = to_float(x[i]);
    return a.norm.values == nullptr ? value : rounded<T>(a.norm.template factor<T>(value * r) * a.norm.at(i));
  };
  for (int64_t i = lane; i < a.half; i += 32) {
    const float2 angle = a.angle(item / a.heads, i);
    const int64_t at = a.first_of_pair(i), partner = at + a.pair_distance();
    const float first = z(at), second = z(partner);
    y[at] = from_float<T>(first * angle.x - second * angle.y);
    y[partner] = from_float<T>(second * angle.x + first * angle.y);
  }
  for (int64_t i = lane; i < a.head_dim - 2 * a.half; i += 32) {
    const int64_t at = i < a.layout.offset ? i : i + 2 * a.half;
    y[at] = from_float<T>(z(at));
  }
}

}  // namespace

void qk_norm_rope(const Context& context, const QkNormRopeArgs& args) {
  if (context.dry() || args.x.numel() == 0) return;
  if (allows_turning_neighbours(context, args, args.x, args.y)) {
    return turn_neighbours(context, args, args.x, {args.y}, 1.0f);
  }
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    HeadRows<T> rows = head_rows<T>(args, args.x.shape[0], args.x.shape[1]);
    T* y = elements<T>(args.y);
    if (allows_head_vectors(context, args, {args.x, args.y})) {
      // Two heads per thread, whose loads overlap, unless there are too few heads.
      const uint32_t one = warps_per_token(rows.heads, rows.head_dim, 1);
      const uint32_t two = warps_per_token(rows.heads, rows.head_dim, 2);
      rows.warps_per_token = two;
      const unsigned blocks = blocks_for(rows.tokens * two, kHeadWarps);
      with_head_dim(args.head_dim, [&](auto dim) {
        const auto kernel = two < one ? &forward_vectors<T, dim(), 2> : &forward_vectors<T, dim(), 1>;
        kernel<<<blocks, kHeadThreads, 0, stream_of(context)>>>(rows, y);
      });
    } else {
      forward_general<T>
          <<<blocks_for(rows.tokens * rows.heads, kHeadWarps), kHeadThreads, 0, stream_of(context)>>>(rows, y);
    }
  });
  check_launch("rotating heads");
}

void qk_norm_rope_pair(const Context& context, const QkNormRopePairArgs& args) {
  const auto& [q, k] = args;
  constexpr int64_t kFewTokens = 256;  // beyond, a launch less is not worth a head a thread
  const bool together = q.x.numel() > 0 && q.x.shape[0] <= kFewTokens && allows_head_vectors(context, q, {q.x, q.y}) &&
                        allows_head_vectors(context, k, {k.x, k.y});
  if (context.dry() || !together) {
    cuda::qk_norm_rope(context, q);
    cuda::qk_norm_rope(context, k);
    return;
  }
  cuda::dispatch_float(q.x.dtype, [&](auto element) {
    using T = decltype(element);
    const auto rows_of = [](const QkNormRopeArgs& heads) {
      HeadRows<T> rows = head_rows<T>(heads, heads.x.shape[0], heads.x.shape[1]);
      rows.warps_per_token = warps_per_token(rows.heads, rows.head_dim, 1);
      return rows;
    };
    const auto blocks_of = [](const HeadRows<T>& rows) {
      return blocks_for(rows.tokens * rows.warps_per_token, kHeadWarps);
    };
    const HeadRows<T> of_q = rows_of(q), of_k = rows_of(k);
    const unsigned blocks = blocks_of(of_q);
    with_head_dim(q.head_dim, [&](auto dim) {
      forward_pair<T, dim()><<<blocks + blocks_of(of_k), kHeadThreads, 0, stream_of(context)>>>(
          of_q, elements<T>(q.y), blocks, of_k, elements<T>(k.y));
    });
  });
  check_launch("rotating queries and keys");
}

}  // namespace hone::cuda
