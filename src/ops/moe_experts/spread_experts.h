// Experts that are spread over N ranks: tokens come to the experts.
//
// A pass over a layer has rounds. In round i each rank gives chunk i of its tokens, at most C = round_tokens / N of
// them: x, choices and weights are gathered on all ranks, each multiplies the rows of its own experts, and the partial
// sums are added up at the tokens' owners. The rows of a round are at most those of all its choices, so every routing
// has room, none is dropped, and no number that depends on routing leaves the device. What the next round needs is
// gathered before the products of this one, into the other of two slots.
//
// Nothing of a round is kept. Backward gathers the rounds again, with the gradients of their results, and computes h
// again. Gradients of weights are added up over the rounds.
//
// Each round's partial sums are rounded to the dtype of x, then added in rank order.
#pragma once

#include "ops/moe_experts/moe_experts.h"
#include "ops/moe_experts/token_exchange.h"

namespace hone {

/// moe_experts() with an exchange.
Var spread_experts(Tape& tape, Var x, const RoutedTokens& routed, const ExpertWeights& weights,
                   const ExpertAdapters& adapters, const LoraDropoutContext& dropout, TokenExchange& exchange);

}  // namespace hone
