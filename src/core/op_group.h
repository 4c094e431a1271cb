// OpGroup: what an op's time counts as in profiles and benchmarks.
#pragma once

#include <cstdint>
#include <string_view>

namespace hone {

/// In the order in which benchmarks list ops.
enum class OpGroup : uint8_t {
  kDense,        ///< products with weights that every token meets
  kAttention,    ///< what lets tokens see each other
  kMemoryBound,  ///< everything whose time is that of reading and writing its operands
  kExperts,      ///< experts, their router and its loss
  kHead,         ///< logits and loss
  kOptimizer,    ///< steps of weights, and the norm of gradients
  kCollectives,  ///< between ranks
};

/// "attention", "experts", "dense", "head", "memory-bound", "optimizer", "collectives"
std::string_view name_of(OpGroup group);

}  // namespace hone
