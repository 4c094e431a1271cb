// low_rank: products with a thin matrix [T, r], for adapters. They are bound by reading or writing the wide matrix [T,
// N] once. Launchers shared by CUDA ops; included by *_cuda.cu only.
#pragma once

#include "core/stream/context.h"
#include "kernels/lora_dropout.h"
#include "tape/weight.h"

namespace hone::cuda {

/// In all three, wide' is wide with dropped features (kernels/lora_dropout.h), not scaled: alpha must include
/// lora_keep_scale. Thin matrices and factors are float32 or bfloat16; with a bfloat16 wide matrix they are rounded to
/// bfloat16. Sums are float32. beta is 0 or 1. Deterministic.

/// thin[t, p] = alpha · Σ_i wide'[t, i] · factor[p, i] + beta · thin
struct LowRankNarrowArgs {
  Tensor wide;    ///< [T, N]
  Tensor factor;  ///< [r, N], or [N, r] if transposed
  bool factor_transposed = false;
  LoraDropout dropout = {};
  float alpha = 1.0f;
  GradDest thin;  ///< float32 [T, r]
};
void low_rank_narrow(const Context& context, const LowRankNarrowArgs& args);

/// wide[t, i] = alpha · keep(t, i) · Σ_p thin[t, p] · factor[p, i] + beta · wide
struct LowRankWidenArgs {
  Tensor thin;    ///< [T, r]
  Tensor factor;  ///< [r, N], or [N, r] if transposed
  bool factor_transposed = false;
  LoraDropout dropout = {};
  float alpha = 1.0f;
  GradDest wide;  ///< [T, N]
};
void low_rank_widen(const Context& context, const LowRankWidenArgs& args);

/// factor[p, i] = alpha · Σ_t thin[t, p] · wide'[t, i] + beta · factor
struct LowRankFactorArgs {
  Tensor thin;  ///< [T, r]
  Tensor wide;  ///< [T, N]
  LoraDropout dropout = {};
  float alpha = 1.0f;
  GradDest factor;  ///< float32 [r, N], or [N, r] if transposed
  bool factor_transposed = false;
};
void low_rank_factor(const Context& context, const LowRankFactorArgs& args);

}  // namespace hone::cuda
