// causal_conv: a short causal convolution of each channel along its document, followed by SiLU, for queries, keys and
// values of gated DeltaNet layers and for x, B and C of Mamba-2's. Source: Yang, Kautz and Hatamizadeh, "Gated Delta
// Networks" (arXiv:2412.06464); Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060), which has a bias.
#pragma once

#include "ops/packed_sequences.h"
#include "tape/tape.h"

namespace hone {

/// Taps of the widest supported convolution.
inline constexpr int64_t kMaxConvTaps = 4;

/// The last K − 1 inputs of N sequences, for generation; sequence n has had lengths[n] tokens (0: its state is treated
/// as zeros, whatever its contents). All layers share lengths.
struct ConvState {
  Tensor inputs;   ///< [N, K − 1, C] dtype of x, oldest first; undefined: documents begin with zeros
  Tensor lengths;  ///< [N] int32
};

/// Per document with rows x_0, x_1, … (for i < 0, x_i is 0 or from the state) and channel c:
///   z[t, c] = bias[c] + Σ_{j < K} w[c, j] · x[t − (K − 1) + j, c]        y = z · sigmoid(z)
/// in float32, rounded once. Documents are independent. With a state, documents are the sequences: the state is updated
/// to the last inputs of each; sequences without new tokens keep theirs.
struct CausalConvArgs {
  Tensor x;  ///< [T, C] float32 or bfloat16
  Tensor w;  ///< [C, 1, K] of either dtype, K <= kMaxConvTaps
  Tensor y;  ///< [T, C], dtype of x
  PackedSequences sequences;
  Tensor bias = {};  ///< [C] of either dtype, or undefined
  ConvState state = {};
};

/// dx (dtype of x), dw and dbias (float32) of the above without a state; each is optional. z is recomputed. dw and
/// dbias are summed over chunks of rows of fixed size, in order.
struct CausalConvGradArgs {
  Tensor x, w;
  Tensor dy;  ///< [T, C], dtype of x
  GradDest dx, dw;
  PackedSequences sequences;
  Tensor bias = {};
  GradDest dbias = {};  ///< not wanted without a bias
};

void causal_conv(const Context& context, const CausalConvArgs& args);
void causal_conv_grad(const Context& context, const CausalConvGradArgs& args);

/// Records y; `bias` may be null. Backward saves x. With a state (generation) there is no backward.
Var causal_conv(Tape& tape, Var x, Weight& w, Weight* bias, const PackedSequences& sequences,
                const ConvState& state = {});

namespace cpu {
void causal_conv(const Context& context, const CausalConvArgs& args);
void causal_conv_grad(const Context& context, const CausalConvGradArgs& args);
}  // namespace cpu

namespace cuda {
void causal_conv(const Context& context, const CausalConvArgs& args);
void causal_conv_grad(const Context& context, const CausalConvGradArgs& args);
}  // namespace cuda

}  // namespace hone
