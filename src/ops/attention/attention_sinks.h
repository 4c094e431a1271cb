// Attention sinks: a learned logit z per query head that is added to the softmax's denominator only (gpt-oss).
//
// With lse and out of attention without the sink, for each row and head:
//   p = exp(z − lse'),  lse' = log(exp(lse) + exp(z)),  out' = (1 − p) · out
// So any attention kernel can be used: out and lse are updated in place to out' and lse', and backward is attention's
// with these values (P = exp(s − lse') and δ = dout·out', as in attention.h). The gradient of the sink:
//   dz = −Σ_rows p · δ
// For bfloat16 out is rounded a second time. Source: openai/gpt-oss model card; Xiao et al. (arXiv:2309.17453).
#pragma once

#include "core/stream/context.h"
#include "tape/weight.h"

namespace hone {

struct AttentionSinks {
  Tensor sinks;  ///< [Hq] float32 or bfloat16
  Tensor out;    ///< [T, Hq·Dv]
  Tensor lse;    ///< [Hq, T] float32
};

struct AttentionSinksGrad {
  AttentionSinks forward;  ///< after apply_sinks
  Tensor dout;             ///< [T, Hq·Dv], dtype of out
  GradDest dsinks;         ///< [Hq] float32
};

// Sums over chunks of rows have a fixed order. Scratch: one float per head and chunk of 64 rows.
namespace cpu {
void apply_sinks(const Context& context, const AttentionSinks& args);
void sinks_grad(const Context& context, const AttentionSinksGrad& args);
}  // namespace cpu

namespace cuda {
void apply_sinks(const Context& context, const AttentionSinks& args);
void sinks_grad(const Context& context, const AttentionSinksGrad& args);
}  // namespace cuda

}  // namespace hone
