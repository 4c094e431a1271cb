// Experts that take a layer's tokens in tiles, one after the other: their memory is that of a tile's rows.
//
// A tile's rows are sorted, multiplied and added up alone, so outputs and gradients of x and of the router's weights
// have the bits of a layer without tiles, as has each row of a product (moe_experts.h). Gradients of weights are
// float32 sums over the tiles, in their order, which are rounded once at the end: their bits depend on the tile.
// Weights are unpacked once for all tiles, and are present (Residency) until the last one.
#pragma once

#include "ops/moe_experts/moe_experts.h"

namespace hone {

/// moe_experts() in tiles of `token_tile` tokens; the last one may have fewer. One node, which saves x, the choices and
/// their weights: backward computes h again, whatever the policy keeps.
Var tiled_experts(Tape& tape, Var x, const RoutedTokens& routed, const ExpertWeights& weights,
                  const ExpertAdapters& adapters, const LoraDropoutContext& dropout, int64_t token_tile);

}  // namespace hone
