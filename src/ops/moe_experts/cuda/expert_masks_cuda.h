// Dropout masks of expert adapters, generated where rows are read or added. CUDA only.
#pragma once

#include "ops/moe_experts/cuda/expert_rows_cuda.h"
#include "ops/moe_experts/cuda/rank_products_cuda.h"

namespace hone::cuda {

/// dst[r] = m ∘ src[index[r]] (index undefined: r) with the adapter's mask for row r.
struct MaskRowsArgs {
  const ExpertRows& rows;
  const LoraDropoutContext& dropout;
  const ExpertAdapterView& adapter;
  Tensor src;         ///< [·, n]
  Tensor index = {};  ///< i32 [R]
  Tensor dst;         ///< [R, n]
};
void mask_rows(const Context& context, const MaskRowsArgs& args);

/// The bits of an adapter's masks in RankSlice's layout: dst u8 [R, mask_stride(n)]. Bits past n are undefined.
struct DrawMasksArgs {
  const ExpertRows& rows;
  const LoraDropoutContext& dropout;
  const ExpertAdapterView& adapter;
  int64_t n;
  Tensor dst;
};
void draw_masks(const Context& context, const DrawMasksArgs& args);

/// dst[r] += Σ_i m_i ∘ (v[r, slice i] A_i), adapters in order, float32 sums, rounded once.
struct AddMaskedArgs {
  const ExpertRows& rows;
  const LoraDropoutContext& dropout;
  const std::vector<ExpertAdapterView>& adapters;
  const std::vector<RankSlice>& slices;
  Tensor v;    ///< [R, J]
  Tensor a;    ///< [E, J, n]
  Tensor dst;  ///< [R, n]
};
void add_masked(const Context& context, const AddMaskedArgs& args);

}  // namespace hone::cuda
