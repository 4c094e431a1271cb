// Bucket: trainable parameters whose values and gradients lie one behind the other in memory, so that ranks move all of
// them by one collective, and share the work on them evenly whatever their sizes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "params/arrival.h"

namespace hone {

class Parameter;

/// Parameters with the same dtypes whose gradients backward finishes together: of a layer's feed-forward half (experts,
/// MLP, router), of its other half with all norms, biases and adapters of the layer, or outside the layers; of several
/// such groups in turn where they are small. Element i of a parameter is element offset + i of both tensors; what lies
/// between parameters is zero.
struct Bucket {
  /// Every parameter begins at a multiple of it, and so does every rank's part: blocks of 8-bit moments stay whole.
  static constexpr int64_t kAlignment = 256;

  std::string name;  ///< "layer 3 feed-forward", "layer 3", "head", "embedding", "layer 9 to layer 4"
  std::vector<Parameter*> parameters;
  std::vector<int64_t> offsets;
  int64_t elements = 0;  ///< a multiple of ranks · kAlignment
  /// Its parameters have no other use in a micro-batch than the one that has written a gradient.
  bool one_use = true;
  /// Each rank steps elements / ranks of it, one behind the other; else each steps all.
  bool sharded = false;
  Tensor values, gradients;  ///< [elements], from allocation on
  /// Of the values, which its parameters wait for where they are read.
  std::shared_ptr<Arrivals> arrivals = std::make_shared<Arrivals>();
};

/// Which rank of how many a process is, and what the ranks share.
struct RankShare {
  int rank = 0, ranks = 1;
  bool shards_state = false;  ///< ZeRO-1: the optimizer's state, and the work of stepping
  /// Gradients of fewer bytes wait for the next group's: a collective begins by waiting for the slowest rank, on
  /// multiprocessors that kernels of backward would have. Measured on 2 H200, LoRA on attention of 48 layers: 48 sums
  /// of 1.1 MB made backward of the expert kernels that they ran beside 35 % slower, 17 ms of a step of 640.
  int64_t least_bucket_bytes = int64_t{64} << 20;
};

}  // namespace hone
