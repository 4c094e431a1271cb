// A product with one frozen matrix in tiles (formats/tiled_weights.h) on AMX.
#pragma once

#include "core/cpu/thread_pool.h"
#include "tape/weight.h"

namespace hone::cpu {

/// What is added to each element of a product c before it is rounded: both of c's dtype, either may be undefined.
struct ProductTerms {
  Tensor bias = {};    ///< [columns]
  Tensor addend = {};  ///< the shape of c, elsewhere
};

///   c bf16 [T, N] = a Wᵀ + bias + beta · c + addend of a weight [N, K] if `columns_first`, else [T, K] = a W + ….
/// Rounded once.
void tile_linear(ThreadPool& pool, const Tensor& a, const Tensor& weight, bool columns_first, const ProductTerms& terms,
                 const GradDest& c);

}  // namespace hone::cpu
