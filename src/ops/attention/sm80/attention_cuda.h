// Shared by attention's forward and backward kernels on tier sm80 (mma.sync, ldmatrix, cp.async). Included by *_cuda.cu
// only.
#pragma once

#include "kernels/cuda/sm80/operand_cuda.h"
#include "ops/attention/attention_gradient_cuda.h"
#include "ops/attention/attention_tiles_cuda.h"

namespace hone::cuda::sm80 {

/// Whether the kernels support these arguments: bfloat16 heads of up to 512 elements, in multiples of 8; of more than
/// 256 where a CTA may have 153 KB. Depends only on shapes, types and the device.
bool sm80_attention_serves(const Context& context, const AttentionArgs& args);

/// Writes lse as [Hq, T].
void sm80_attention(const Context& context, const AttentionArgs& args, const AttentionTiles& tiles);

/// Scratch of the gradients.
struct BackwardScratch {
  AttentionTiles tiles;
  QueryStats stats;
  Tensor turns;       ///< [Hq, query_blocks] int32: number of key tiles that have added to these queries' dq
  Tensor partial_dq;  ///< [Hq, query_blocks, queries, head_dim padded] float32, in the accumulators' layout
  int64_t query_blocks = 0;

  BackwardScratch(const Context& context, ArenaScope& memory, const AttentionArgs& args);
};
void sm80_attention_backward(const Context& context, const AttentionBackwardArgs& args, const BackwardScratch& scratch);

#ifdef __CUDACC__

/// Rows of one head in a [rows, heads · dim] tensor.
struct HeadRows {
  const __nv_bfloat16* first;  ///< the head in the document's first row
  int64_t stride;              ///< elements between rows
  int dim;                     ///< elements of the head, a multiple of 8

  __device__ HeadRows(const __nv_bfloat16* tensor, int64_t begin, int head, int heads, int head_dim)
      : first(tensor + (begin * heads + head) * head_dim), stride(int64_t{heads} * head_dim), dim(head_dim) {}
};

/// Copies rows [row, row + kLines) with kThreads threads from `first_thread` on; zeros beyond `length` rows and beyond
/// the head. Eight threads copy 128 bytes of a line, and all lines of a thread have the same permutation. With fewer
/// lines than that is at a time, the last threads copy none.
template <int kThreads, int kLines, int kWidth>
__device__ inline void copy_rows(const SharedLines<kLines, kWidth>& to, const HeadRows& from, int row, int length,
                                 int first_thread = 0) {
  constexpr int kStep = kThreads / 8;  // lines that all threads copy at a time
  static_assert(kWidth % 64 == 0 && kStep % 8 == 0 && (kLines % kStep == 0 || kLines < kStep));
  const unsigned thread = static_cast<unsigned>(recomputed(static_cast<int>(threadIdx.x)) - first_thread);
  const int line = static_cast<int>(thread / 8), unit = static_cast<int>(thread % 8);
  if (kLines < kStep && line >= kLines) return;
  const uint32_t address = to.unit(line, unit);
  const __nv_bfloat16* source = from.first + (row + line) * from.stride + 8 * unit;
#pragma unroll
  for (int i = 0; i < kLines; i += kStep) {
#pragma unroll
    for (int j = 0; j < kWidth; j += 64) {
      const bool exists = row + line + i < length && 8 * unit + j < from.dim;
      cp_async_16(address + static_cast<uint32_t>((i * kWidth + j) * 2), exists ? source + j : from.first, exists);
    }
    source += kStep * from.stride;
  }
}

/// Columns of values and gradients that the kernels for wide heads compute at a time.
inline constexpr int kWideSlice = 256;
/// Whether heads are wider than that: then the accumulators do not fit, and a CTA has a slice of the columns. Each
/// slice computes the scores again.
inline bool has_wide_heads(const AttentionOptions& options) {
  return options.head_dim > kWideSlice || options.v_head_dim > kWideSlice;
}

inline constexpr float kLog2E = 1.44269504088896f, kLn2 = 0.693147180559945f;

/// Calls f with the first shape of a list that fits these heads and whose CTAs fit in the multiprocessor's shared
/// memory (the system reserves 1 KB each), else with the last one.
template <class Shape, class... Others, class F>
void with_attention_shape(int64_t head_dim, int64_t v_head_dim, size_t shared_memory, const F& f) {
  constexpr size_t kSystem = 1024;
  if constexpr (sizeof...(Others) > 0) {
    if (head_dim > Shape::kDim || v_head_dim > Shape::kValueDim ||
        Shape::kCtas * (Shape::kBytes + kSystem) > shared_memory + kSystem) {
      return with_attention_shape<Others...>(head_dim, v_head_dim, shared_memory, f);
    }
  }
  f(Shape{});
}

#endif  // __CUDACC__

}  // namespace hone::cuda::sm80
