// A low-rank adapter of the weights of experts, as passed to the kernels of their products.
#pragma once

#include <cstdint>

#include "core/base/tensor.h"
#include "kernels/lora_dropout.h"

namespace hone {

/// An adapter of each expert's weight W [out, in] during an op; it adds to outputs [out_begin, out_begin + out_count).
struct ExpertAdapterView {
  Tensor lora_a;  ///< [E, r, in] float32 or bfloat16
  Tensor lora_b;  ///< [E, out_count, r]
  int64_t out_begin = 0, out_count = 0;
  float scaling = 1.0f;
  float dropout = 0.0f;  ///< 0 outside of training
  uint32_t stream_id = 0;

  int64_t rank() const { return lora_a.shape[1]; }
  /// scaling times the factor of the input features that dropout keeps.
  float input_scaling() const { return scaling * lora_keep_scale(dropout); }
};

/// Columns of an adapter of this rank in x Aᵀ, where the columns of all adapters are concatenated: a multiple of 8,
/// since kernels read 16 bytes at a time.
constexpr int64_t expert_rank_columns(int64_t rank) { return (rank + 7) / 8 * 8; }

}  // namespace hone
