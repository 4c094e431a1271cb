// The attention kernels for every GPU: float32 arithmetic, any head_dim and v_head_dim up to 512. Included by *_cuda.cu
// only.
#pragma once

#include "kernels/cuda/rows/document_tiles_cuda.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_gradient_cuda.h"
#include "ops/attention/cached_keys_cuda.h"

namespace hone::cuda {

inline constexpr int kMaxGeneralHeadDim = 512;

/// Queries against the keys of their documents, or against a cache. All offsets are in device memory.
template <class T>
struct GeneralForward {
  const T *q, *k, *v;
  T* out;
  float* lse;  ///< [Hq, T], or null
  const int32_t* cu_seqlens;
  int num_documents;
  int64_t tokens;
  int num_heads, num_kv_heads, head_dim, v_head_dim;
  float scale;
  int64_t window;
  CachedKeys cached;
  /// Documents with fewer queries are processed by another kernel.
  int least_queries;
};

/// Launches the forward kernel; results of a row depend only on its position and on the rows that it attends to.
template <class T>
void launch_general_forward(const Context& context, const GeneralForward<T>& args);

/// Backward of attention. `delta` is scratch, [Hq, T].
void general_attention_backward(const Context& context, const AttentionBackwardArgs& args, const Tensor& delta);

/// Calls f with the smallest of 32, 64, 128, 256 and 512 that is at least `dim`, as an integral constant.
template <class F>
void dispatch_padded_dim(int64_t dim, F&& f) {
  HONE_ASSERT(dim <= kMaxGeneralHeadDim);
  if (dim <= 32) return f(std::integral_constant<int, 32>{});
  if (dim <= 64) return f(std::integral_constant<int, 64>{});
  if (dim <= 128) return f(std::integral_constant<int, 128>{});
  if (dim <= 256) return f(std::integral_constant<int, 256>{});
  f(std::integral_constant<int, kMaxGeneralHeadDim>{});
}

}  // namespace hone::cuda
