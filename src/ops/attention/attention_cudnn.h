// attention forward through cuDNN: bfloat16, packed documents, on the GPUs and head sizes that it serves.
#pragma once

#include "ops/attention/attention.h"

namespace hone::cuda {

/// What cuDNN reads instead of cu_seqlens: sizes rounded up, so that few plans serve all batches.
struct CudnnSequences {
  int64_t num_documents = 0;  ///< B; documents beyond those that exist are empty
  int64_t max_seqlen = 0;
  Tensor lengths;     ///< [B] int32
  Tensor query_rows;  ///< [B + 1] int64: elements of q before each document
  Tensor key_rows;    ///< [B + 1] int64: elements of k
  Tensor value_rows;  ///< [B + 1] int64: elements of v
  Tensor out_rows;    ///< [B + 1] int64: elements of out
  Tensor stats_rows;  ///< [B + 1] int64: elements of lse, which is [T, Hq]
};

/// Whether cuDNN computes this call. The answer depends on sizes only; the first one for new sizes builds a plan.
/// False in a build without the header library.
bool cudnn_attention_serves(const Context& context, const AttentionArgs& args, const CudnnSequences& sequences);

/// Queues it, with the library's fixed workspace; cudnn_attention_serves() must be true.
void cudnn_attention(const Context& context, const AttentionArgs& args, const CudnnSequences& sequences);

}  // namespace hone::cuda
