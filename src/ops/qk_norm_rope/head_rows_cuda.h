// Shared by the forward and backward kernels of qk_norm_rope: the mapping of threads to parts of heads, and their
// arithmetic.
//
// The kernels for common head sizes keep a head in the registers of head_dim / 16 adjacent lanes: each has 8 elements
// of the first half and the 8 elements of the second half with which they are rotated. A warp processes several heads
// of one token, which share the angles.
#pragma once

#include <math_constants.h>

#include <initializer_list>

#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"
#include "ops/rms_norm/norm_weight_cuda.h"

namespace hone::cuda {

inline constexpr int kHeadThreads = 256, kHeadWarps = kHeadThreads / 32;
inline constexpr int kHalfValues = 8;

/// Warps for a token's heads of a common size, where a thread has parts of `heads_per_thread` heads; 0 for other sizes.
inline uint32_t warps_per_token(int64_t heads, int64_t head_dim, int heads_per_thread) {
  if (head_dim < 16 || head_dim > 512) return 0;
  const int64_t per_warp = 32 / (head_dim / 16) * heads_per_thread;
  return static_cast<uint32_t>((heads + per_warp - 1) / per_warp);
}

/// Whether the kernels for common sizes apply: whole heads are rotated, and all tensors are aligned.
inline bool allows_head_vectors(const Context& context, const QkNormRopeArgs& args,
                                std::initializer_list<Tensor> tensors) {
  const int64_t dim = args.head_dim, half = args.table.cos.shape[1];
  bool vectors = !context.stream().general_kernels() && (dim == 64 || dim == 128 || dim == 256) && 2 * half == dim &&
                 !args.layout.interleaved;
  for (const Tensor& tensor : tensors) vectors = vectors && allows_vectors(tensor, dim, kHalfValues);
  for (const Tensor& tensor : {args.norm, args.table.cos, args.table.sin}) {
    vectors = vectors && allows_vectors(tensor, half, kHalfValues);
  }
  return vectors;
}

/// Calls f with the head size as a constant.
template <class F>
void with_head_dim(int64_t head_dim, F&& f) {
  if (head_dim == 64) return f(std::integral_constant<int, 64>{});
  if (head_dim == 128) return f(std::integral_constant<int, 128>{});
  HONE_ASSERT(head_dim == 256);
  f(std::integral_constant<int, 256>{});
}

#ifdef __CUDACC__

/// Cosines and sines of the pairs of a thread.
struct Angles {
  float cos[kHalfValues], sin[kHalfValues];
};

template <class T>
struct HeadRows {
  const T* x;
  NormWeight norm;  // null values: no norm
  float eps;
  const float* cos;
  const float* sin;
  int64_t half, positions_in_table;
  const int32_t* positions;
  int64_t tokens, heads, head_dim;
  RotaryLayout layout;
  uint32_t warps_per_token = 0;  // for the kernels for common sizes

  /// Angles of positions beyond the table are NaN, and so is the loss.
  __device__ float2 angle(int64_t token, int64_t i) const {
    const int64_t position = positions[token];
    if (position < 0 || position >= positions_in_table) return {CUDART_NAN_F, CUDART_NAN_F};
    return {cos[position * half + i], sin[position * half + i]};
  }
  /// Index of pair i's first element in a head, and the distance to the second.
  __device__ int64_t first_of_pair(int64_t i) const { return layout.offset + (layout.interleaved ? 2 * i : i); }
  __device__ int64_t pair_distance() const { return layout.interleaved ? 1 : half; }
  __device__ void load_angles(int64_t token, int column, Angles& angles) const {
    const int64_t position = positions[token];
    if (position >= 0 && position < positions_in_table) {
      load_floats(cos + position * half + column, angles.cos);
      load_floats(sin + position * half + column, angles.sin);
    } else {
#pragma unroll
      for (int i = 0; i < kHalfValues; ++i) angles.cos[i] = angles.sin[i] = CUDART_NAN_F;
    }
  }
};

template <class T>
HeadRows<T> head_rows(const QkNormRopeArgs& args, int64_t tokens, int64_t width) {
  const int64_t heads = width / args.head_dim;
  return {.x = elements<T>(args.x),
          .norm = NormWeight(args.norm, args.weighting),
          .eps = args.eps,
          .cos = elements<float>(args.table.cos),
          .sin = elements<float>(args.table.sin),
          .half = args.table.cos.shape[1],
          .positions_in_table = args.table.cos.shape[0],
          .positions = elements<int32_t>(args.positions),
          .tokens = tokens,
          .heads = heads,
          .head_dim = args.head_dim,
          .layout = args.layout};
}

/// The kHeads heads and the columns of a thread; its warp processes item `item`: a token and a group of its heads.
template <int kDim, int kHeads>
struct HeadPlace {
  static constexpr int kLanes = kDim / 16;
  int64_t token, first_head, heads;
  int column;

  template <class T>
  __device__ HeadPlace(const HeadRows<T>& rows, uint32_t item) : heads(rows.heads) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    token = item / rows.warps_per_token;
    first_head = item % rows.warps_per_token * (32 / kLanes * kHeads) + lane / kLanes;
    column = lane % kLanes * kHalfValues;
  }
  __device__ bool has(int h) const { return first_head + h * (32 / kLanes) < heads; }
  /// Offset of this thread's first element of its h-th head; the second half is kDim / 2 further.
  __device__ int64_t offset(int h) const { return (token * heads + first_head + h * (32 / kLanes)) * kDim + column; }
};

/// A thread's part of a head, in the memory's dtype.
template <class T>
struct HeadPart {
  Vector<T, kHalfValues> first, second;

  __device__ void load(const T* x, int half) {
    first = load_vector<kHalfValues>(x);
    second = load_vector<kHalfValues>(x + half);
  }
};

using HalfValues = float[kHalfValues];

__device__ inline float dot(const HalfValues& a, const HalfValues& b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kHalfValues; ++i) sum += a[i] * b[i];
  return sum;
}

/// Rotates the pairs by their angles, or back (direction -1).
__device__ inline void turn(const Angles& angles, float direction, HalfValues& first, HalfValues& second) {
#pragma unroll
  for (int i = 0; i < kHalfValues; ++i) {
    const float a = first[i], b = second[i], sin = direction * angles.sin[i];
    first[i] = a * angles.cos[i] - b * sin;
    second[i] = b * angles.cos[i] + a * sin;
  }
}

#endif  // __CUDACC__

}  // namespace hone::cuda
