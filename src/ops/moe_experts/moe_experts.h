// moe_experts: applies k chosen MLPs to each token.
//
//   out[t] = Σ_j weights[t, j] · (down_e f(gate_e x_t, up_e x_t)),   e = ids[t, j],   f(g, u) = silu(g) ∘ u
//
// Each product may have a bias per expert. f may be another function (MlpActivation); the C columns of h = gate_e x_t,
// up_e x_t are function.columns(I): 2I, or I if f has no gate, where gate_up is up alone.
//
// The R = T · k (token, expert) pairs are sorted by expert ("rows"), so that each expert is one matrix product; rows of
// x are gathered while the product packs them. Three nodes, which a recomputation policy treats separately:
//   moe_permutation  ids [T, k] -> the order of rows (integers)
//   moe_gate_up      x [T, H] -> h [R, C], gate and up; activation [R, I] = f(h); x Aᵀ of its adapters
//   moe_down         activation, weights -> out [T, H]
// The activation is not saved: it is freed after moe_down, and backward recomputes it from h. Sizes on the host depend
// only on T and k; launched work reads the offsets of experts' rows.
//
// A layer of many tokens may take them in tiles, so that its memory is that of a tile's rows (tiled_experts.h).
//
// Experts may be spread over ranks, each of which has a block of them (spread_experts.h). Choices of other ranks'
// experts then have no row here: the result is a partial sum.
//
// Adapters (LoRA) are computed in addition to the base product, never merged:
//   h[:, out_begin : out_begin + out_count] += scaling · drop(x) A_eᵀ B_eᵀ, and likewise for down.
//
// Sums are float32. Rounded to the dtype of x are h (once, the adapters' part included; on a CPU without AMX that part
// is rounded by its own size before it is added), the activation, x Aᵀ and, in backward, dh and the activation times
// the router's weight; on a GPU and on AMX also the rows of the down product and of dx before those of a token are
// added, factors of adapters, and dy B; on a GPU also products before their bias is added, the gradient of the
// activation, and with dropout the base's part of dx and of that gradient before the adapters' is added. On a CPU a
// frozen weight may be stored in 8 bits (int8_weights.h); if no kernel multiplies with those, products use its
// dequantised values, some experts at a time (base_experts_cpu.h). Deterministic: products do not depend on threads
// (gemm.h); a token's rows are added in the order of its k choices. Speed on a GPU: SwiGLU without biases is fused into
// the products; other activations and biases are passes over rows. On AMX, bfloat16 experts with H and I multiples of
// 32 take one pass of tasks per product, whose epilogues compute f, its gradient, biases and adapters
// (tile_products_cpu.h); an expert without rows costs nothing there, and one with few rows the time to read its
// weights. Sources: Gale et al., "MegaBlocks" (arXiv:2211.15841) for the permuted products; Hu et al.
// (arXiv:2106.09685).
#pragma once

#include <vector>

#include "kernels/expert_adapter.h"
#include "kernels/lora_dropout.h"
#include "kernels/mlp_activation.h"
#include "ops/router/router.h"
#include "ops/row_tiles/bounded_tile.h"
#include "tape/tape.h"

namespace hone {

/// Rows sorted by expert, then by token. R = T · k < 2^31; with a block of the experts R = T · min(k, E), of which
/// offsets[E] are in use.
struct ExpertRows {
  Tensor offsets;            ///< i64 [E + 1]: rows [offsets[e], offsets[e + 1]) belong to expert e
  Tensor token;              ///< i32 [R]: the token of a row
  Tensor assignment;         ///< i32 [R]: t · k + j, the choice of a row
  Tensor row;                ///< i32 [T, k]: the row of a choice; -1: it is of another rank's expert
  int64_t first_expert = 0;  ///< the model's expert that is expert 0 here
  int64_t all_experts = 0;   ///< how many the model has; 0: E, all are here

  bool partial() const { return all_experts > 0; }
};

struct ExpertRowsArgs {
  Tensor
      ids;  ///< i32 [T, k], of the model's experts: in [0, E), or [0, all_experts) (asserted; a GPU stops with a trap)
  ExpertRows rows;
};

struct ExpertAdapterGrad {
  GradDest lora_a, lora_b;  ///< float32, shapes of the weights
};

struct MoeGateUpArgs {
  ExpertRows rows;
  Tensor x;           ///< [T, H] float32 or bfloat16
  WeightView weight;  ///< [E, C, H], gate rows first
  Tensor bias = {};   ///< [E, C], or undefined
  std::vector<ExpertAdapterView> adapters;
  LoraDropoutContext dropout;
  MlpActivation function = {};
  Tensor xa;          ///< out, [R, J = Σ expert_rank_columns]: mask(x) Aᵀ of all adapters, concatenated
  Tensor h;           ///< out, [R, C], dtype of x
  Tensor activation;  ///< out, [R, I] = f(h), computed from the rounded h
  /// No gradient follows: products of few rows may add in another order than those of training (a GPU).
  bool decode = false;
};

/// Unwanted gradients are not computed. Experts without rows get exact zeros if beta is 0.
struct MoeGateUpGradArgs {
  ExpertRows rows;
  Tensor x;  ///< only read if dweight or a lora_a is wanted
  WeightView weight;
  std::vector<ExpertAdapterView> adapters;
  LoraDropoutContext dropout;
  MlpActivation function = {};
  Tensor xa;            ///< only read if a lora_b is wanted
  Tensor dh;            ///< [R, C], dtype of x
  GradDest dx;          ///< [T, H], dtype of x
  GradDest dweight;     ///< [E, C, H] float32, or bfloat16 with beta 0
  GradDest dbias = {};  ///< [E, C] float32
  std::vector<ExpertAdapterGrad> dadapters;
};

struct MoeDownArgs {
  ExpertRows rows;
  Tensor activation;  ///< [R, I]
  Tensor weights;     ///< [T, k] router weights; dtype of the activation
  WeightView weight;  ///< [E, H, I]
  Tensor bias = {};   ///< [E, H], or undefined
  std::vector<ExpertAdapterView> adapters;
  LoraDropoutContext dropout;
  Tensor out;           ///< out, [T, H], dtype of the activation
  bool decode = false;  ///< as in MoeGateUpArgs
};

/// Needs no expert outputs: d weights[t, j] = <dout[t], y_row> = <dout[t] W_down, act_row> + <dout[t], bias_e>.
struct MoeDownGradArgs {
  ExpertRows rows;
  Tensor h, weights;
  WeightView weight;
  Tensor bias = {};
  std::vector<ExpertAdapterView> adapters;
  LoraDropoutContext dropout;
  MlpActivation function = {};
  Tensor dout;          ///< [T, H], dtype of h
  GradDest dh;          ///< [R, C], dtype of h; may be h, with beta 0
  GradDest dweights;    ///< [T, k], dtype of h; exact zeros for choices without a row (beta 0 then)
  GradDest dweight;     ///< [E, H, I] float32, or bfloat16 with beta 0
  GradDest dbias = {};  ///< [E, H] float32
  std::vector<ExpertAdapterGrad> dadapters;
};

void moe_permutation(const Context& context, const ExpertRowsArgs& args);
void moe_gate_up(const Context& context, const MoeGateUpArgs& args);
void moe_gate_up_grad(const Context& context, const MoeGateUpGradArgs& args);
void moe_down(const Context& context, const MoeDownArgs& args);
void moe_down_grad(const Context& context, const MoeDownGradArgs& args);

struct ExpertWeights {
  Weight* gate_up = nullptr;       ///< [E, C, H], gate rows first
  Weight* down = nullptr;          ///< [E, H, I]
  Weight* gate_up_bias = nullptr;  ///< [E, C], or null
  Weight* down_bias = nullptr;     ///< [E, H], or null
  MlpActivation function = {};
};

/// An adapter of some of the outputs of a stacked expert weight.
struct ExpertAdapter {
  Adapter adapter;  ///< lora_a [E, r, in], lora_b [E, out_count, r]
  int64_t out_begin = 0, out_count = 0;
};

/// Split: gate on [0, I) and up on [I, 2I), or up on [0, I). Shared: one adapter on [0, C). May be empty, or only for
/// down.
struct ExpertAdapters {
  std::vector<ExpertAdapter> gate_up, down;
};

class TokenExchange;

/// The tile for at most `tokens` tokens that choose `choices` experts each: 0, all tokens at once, up to kUntiledRows
/// rows; beyond, the tokens of kTileRows rows, a multiple of 128. Experts then multiply at full speed: 128 of them have
/// 2,048 rows each.
inline constexpr int64_t kUntiledRows = 524288, kTileRows = 262144;
constexpr int64_t bounded_token_tile(int64_t tokens, int64_t choices) {
  return bounded_tile(tokens, choices, kUntiledRows, kTileRows);
}

/// Records the experts of x [T, H] for `routed`. `dropout` is read in training if an adapter has dropout. Returns [T,
/// H], dtype of x. Saves for backward h, the rows' order and weights; x and x Aᵀ if adapters or gate_up are trained.
///
/// `exchange`, which must outlive the tape, connects the ranks over which the experts are spread; null: all are here.
/// All of its ranks record this, with their own tokens, of which there may be none. That is one node, in rounds
/// (spread_experts.h), and saves x, the choices and their weights.
///
/// `token_tile`: how many tokens are computed at a time (tiled_experts.h), without an exchange, which has rounds of its
/// own; 0: all.
Var moe_experts(Tape& tape, Var x, const RoutedTokens& routed, const ExpertWeights& weights,
                const ExpertAdapters& adapters = {}, const LoraDropoutContext& dropout = {},
                TokenExchange* exchange = nullptr, int64_t token_tile = 0);

namespace cpu {
void moe_permutation(const Context& context, const ExpertRowsArgs& args);
void moe_gate_up(const Context& context, const MoeGateUpArgs& args);
void moe_gate_up_grad(const Context& context, const MoeGateUpGradArgs& args);
void moe_down(const Context& context, const MoeDownArgs& args);
void moe_down_grad(const Context& context, const MoeDownGradArgs& args);
}  // namespace cpu

namespace cuda {
void moe_permutation(const Context& context, const ExpertRowsArgs& args);
void moe_gate_up(const Context& context, const MoeGateUpArgs& args);
void moe_gate_up_grad(const Context& context, const MoeGateUpGradArgs& args);
void moe_down(const Context& context, const MoeDownArgs& args);
void moe_down_grad(const Context& context, const MoeDownGradArgs& args);
}  // namespace cuda

}  // namespace hone
