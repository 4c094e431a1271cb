// Documents packed into one row of tokens, for ops that mix tokens.
#pragma once

#include "core/base/tensor.h"

namespace hone {

/// Consecutive documents in T rows: document n has rows [cu_seqlens[n], cu_seqlens[n + 1]); some may be empty.
/// cu_seqlens increases from cu_seqlens[0] = 0 to cu_seqlens[num_documents] = T (checked on a CPU).
struct PackedSequences {
  Tensor cu_seqlens;  ///< [num_documents + 1] int32, only read by launched work
  int64_t num_documents = 0;
  int64_t max_seqlen = 0;  ///< at least the length of the longest document
};

}  // namespace hone
