// OpGroup: the category of an op in profiles and benchmarks.
#pragma once

#include <cstdint>
#include <string_view>

namespace hone {

/// In the order of benchmark tables.
enum class OpGroup : uint8_t {
  kDense,        ///< products with weights that apply to every token
  kAttention,    ///< attention and other mixing of tokens
  kMemoryBound,  ///< ops whose time is that of reading and writing their operands
  kExperts,      ///< experts, their router and its loss
  kHead,         ///< logits and loss
  kOptimizer,    ///< updates of weights, and the norm of gradients
  kCollectives,  ///< between ranks
};

/// "attention", "experts", "dense", "head", "memory-bound", "optimizer", "collectives"
std::string_view name_of(OpGroup group);

}  // namespace hone
