// Documents packed into one row of tokens, for the ops that mix tokens.
#pragma once

#include "core/tensor.h"

namespace hone {

/// Documents laid one after another in T rows: document n owns rows [cu_seqlens[n], cu_seqlens[n + 1]); some may be
/// empty. cu_seqlens rises from cu_seqlens[0] = 0 to cu_seqlens[num_documents] = T (checked on a CPU).
struct PackedSequences {
  Tensor cu_seqlens;  ///< [num_documents + 1] int32, read by the launched work only
  int64_t num_documents = 0;
  int64_t max_seqlen = 0;  ///< at least the length of the longest document
};

}  // namespace hone
