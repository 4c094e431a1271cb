// Bucket: parameters whose values and gradients lie one after the other in memory, so that ranks move all of them by
// one collective, and share the work on them evenly whatever their sizes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "params/arrival.h"
#include "params/slice.h"

namespace hone {

class Parameter;

/// What ranks share of a bucket: each keeps a part of its elements, and what is not shared is whole on all of them. The
/// stages of ZeRO, each with what the ones before it have: Rajbhandari et al. (arXiv:1910.02054).
enum class ZeroStage {
  kNone,
  kState,      ///< the optimizer's state, and the work of stepping
  kGradients,  ///< gradients, between the backward of the bucket's group and the step
  kValues,     ///< values, between uses of the bucket's group
};

/// Parameters of one dtype that a model uses in one group (params/placement.h); of several groups in turn where they
/// are small and nothing but the state is shared. Element i of a parameter is element offset + i of every tensor here;
/// what lies between parameters is zero.
struct Bucket {
  /// Every parameter begins at a multiple of it, and so does every rank's part: blocks of 8-bit moments stay whole.
  static constexpr int64_t kAlignment = 256;

  std::string name;  ///< "layer 3 feed-forward", "layer 3", "head", "embedding", "layer 9 to layer 4"
  ZeroStage stage = ZeroStage::kNone;
  bool trained = true;   ///< false: frozen parameters, which are in buckets for their values alone
  bool in_host = false;  ///< between uses of the group its values are in host memory
  std::vector<Parameter*> parameters;
  std::vector<int64_t> offsets;
  int64_t elements = 0;  ///< a multiple of ranks · kAlignment
  /// Where the ranks' parts begin, and the end of the last: elements / ranks each, but a cut that would go through a
  /// matrix whose state stays whole (TrainingFormats) is moved to the nearer end of it.
  std::vector<int64_t> cuts;
  /// Its parameters have no other use in a micro-batch than the one that has written a gradient.
  bool one_use = true;
  // From allocation on:
  /// [elements]. Of values that are brought, and of gradients that are sharded: memory that other groups have before
  /// and after the bucket's.
  Tensor values, gradients;
  /// What this rank keeps of values that are brought: its part where they are sharded, else all.
  Tensor own_values;
  Tensor own_gradients;  ///< of this rank's part, where they are sharded

  /// Of the values, which its parameters wait for where they are read.
  std::shared_ptr<Arrivals> arrivals = std::make_shared<Arrivals>();

  Slice part_of(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return {cuts[r], cuts[r + 1] - cuts[r]};
  }
  bool sharded() const { return stage >= ZeroStage::kState; }
  bool shards_gradients() const { return trained && stage >= ZeroStage::kGradients; }
  bool shards_values() const { return stage >= ZeroStage::kValues; }
  /// Whether its values are on the device for uses of the group alone: from other ranks, or from host memory.
  bool brings_values() const { return shards_values() || in_host; }
};

/// What is kept in host memory between uses.
struct Offload {
  bool optimizer = false;  ///< moments and masters, which the optimizer's kernels read and write where they are
  bool params = false;     ///< the values of layers, except vectors and other small ones
  bool experts = false;    ///< of these, routed experts' alone

  bool values() const { return params || experts; }
};

/// Which rank of how many a process is, what the ranks share, and what is in host memory.
struct RankShare {
  int rank = 0, ranks = 1;
  ZeroStage stage = ZeroStage::kNone;
  Offload offload = {};
  /// Gradients and values of smaller parameters, and of those outside the layers, stay whole on every rank.
  int64_t least_sharded_elements = 100'000;
  /// Gradients of fewer bytes wait for the next group's: a collective begins by waiting for the slowest rank, on
  /// multiprocessors that kernels of backward would have. Measured on 2 H200, LoRA on attention of 48 layers: 48 sums
  /// of 1.1 MB made backward of the expert kernels that they ran beside 35 % slower, 17 ms of a step of 640.
  int64_t least_bucket_bytes = int64_t{64} << 20;
};

}  // namespace hone
