// A product with one frozen matrix in tiles (formats/tiled_weights.h) on AMX.
#pragma once

#include "core/thread_pool.h"
#include "tape/weight.h"

namespace hone::cpu {

///   c bf16 [T, N] = a Wᵀ + beta · c of a weight [N, K] if `columns_first`, else [T, K] = a W + beta · c.
void tile_linear(ThreadPool& pool, const Tensor& a, const Tensor& weight, bool columns_first, const GradDest& c);

}  // namespace hone::cpu
