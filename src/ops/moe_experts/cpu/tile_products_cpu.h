// The products of the experts' rows on AMX, each a single pass over tasks of all experts: the base product, the
// adapters' part, and the epilogue of a row (expert_tiles.h).
#pragma once

#include "kernels/cpu/tile_products/tile_product.h"
#include "ops/moe_experts/cpu/activation_rows_cpu.h"

namespace hone::cpu {

/// Whether the functions below support experts of these sizes and dtypes.
bool takes_tiles(int64_t hidden, int64_t intermediate, DType activations, DType weights);

/// Computes h and the activation.
void tile_gate_up(ThreadPool& pool, const MoeGateUpArgs& args, const TileLowRank& xa);

/// y bf16 [R, H] = activation W_downᵀ + bias.
void tile_down(ThreadPool& pool, const MoeDownArgs& args, const TileLowRank& xa, const Tensor& y);

/// The results of activation_grad() from dact = dout[token] W_down + s · v A, which is not stored. If the router's
/// weights are trained, stores their gradients as `dots` f32 [R, dot_parts(I)], parts of <dact, act>. Computes v f32
/// [R, J] = dout B. Without dropout only.
void tile_activation_grad(ThreadPool& pool, const MoeDownGradArgs& args, const ActivationGradArgs& activation,
                          const Tensor& v, const Tensor& dots);
int64_t dot_parts(int64_t intermediate);

/// dx_rows bf16 [R, H] = dh W_gate_up + s · v A. Computes v f32 [R, J] = dh B. Without dropout only.
void tile_input_grad(ThreadPool& pool, const MoeGateUpGradArgs& args, const Tensor& v, const Tensor& dx_rows);

/// c float32 [R, K] = a W with a weight [E, N, K]; with dropout, the adapters' part is added by the caller.
void tile_product(ThreadPool& pool, const ExpertRows& rows, const RowMatrix& a, const WeightView& weight,
                  const Tensor& c);

}  // namespace hone::cpu
