// Bucket: trainable parameters whose values and gradients lie one behind the other in memory, so that ranks move all of
// them by one collective, and share the work on them evenly whatever their sizes.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace hone {

class Parameter;

/// The parameters of a layer (or outside the layers) with the same dtypes. Element i of a parameter is element
/// offset + i of both tensors; what lies between parameters is zero.
struct Bucket {
  /// Every parameter begins at a multiple of it, and so does every rank's part: blocks of 8-bit moments stay whole.
  static constexpr int64_t kAlignment = 256;

  std::vector<Parameter*> parameters;
  std::vector<int64_t> offsets;
  int64_t elements = 0;  ///< a multiple of ranks · kAlignment
  /// Its parameters have no other use in a micro-batch than the one that has written a gradient.
  bool one_use = true;
  /// Each rank steps elements / ranks of it, one behind the other; else each steps all.
  bool sharded = false;
  Tensor values, gradients;  ///< [elements], from allocation on
};

/// Which rank of how many a process is, and what the ranks share.
struct RankShare {
  int rank = 0, ranks = 1;
  bool shards_state = false;  ///< ZeRO-1: the optimizer's state, and the work of stepping
};

}  // namespace hone
