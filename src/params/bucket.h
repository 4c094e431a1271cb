// Bucket: parameters whose values and gradients are contiguous in memory, so that one collective moves all of them, and
// ranks share the work on them evenly.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/base/tensor.h"
#include "params/arrival.h"
#include "params/slice.h"
#include "params/value_home.h"

namespace hone {

class Parameter;

/// The data of a bucket that the ranks of a group shard: each keeps a part of the elements; everything else is whole on
/// every rank.
/// The stages of ZeRO, each including those before it: Rajbhandari et al. (arXiv:1910.02054).
enum class ZeroStage {
  kNone,
  kState,      ///< the optimizer's state, and the work of stepping
  kGradients,  ///< gradients, between the backward of the bucket's group and the step
  kValues,     ///< values, between uses of the bucket's group
};

/// Parameters of one dtype that a model uses in one group (params/placement.h), or in several consecutive groups if
/// they are small and only the state is sharded.
struct Bucket {
  /// Every parameter and every rank's part begin at a multiple of this, so that blocks of 8-bit moments stay whole.
  static constexpr int64_t kAlignment = 256;

  /// What its parameters have in common.
  struct Kind {
    ZeroStage stage = ZeroStage::kNone;
    bool trained = true;  ///< false: frozen parameters, which are in buckets because of their values
    const ValueHome* home = &kResident;
    bool packed = false;  ///< its values are chunks (formats/packed_weights.h)
    /// Whether it has experts that are spread over ranks: elements are those of this rank's experts, and gradients are
    /// summed over the ranks that keep the same experts.
    bool spread = false;
    /// Each parameter is used once per micro-batch, so its first gradient is its only one.
    bool one_use = true;
  };

  /// Where its parameters and the ranks' parts are in its tensors: element i of a parameter is element offset + i, and
  /// gaps between parameters are zero.
  struct Layout {
    std::vector<int64_t> offsets;
    int64_t elements = 0;  ///< a multiple of shard ranks · kAlignment
    /// Begin of the part of each rank of a shard group, and the end of the last: elements / ranks each, but a cut
    /// through a matrix whose state stays whole (TrainingFormats) moves to the nearer end of that matrix.
    std::vector<int64_t> cuts;
    /// The same in bytes of chunks, if it is packed: a rank's part is whole matrices.
    std::vector<int64_t> chunk_offsets, chunk_cuts;
    bool in_place = false;  ///< `values` contains own_values: they are mapped to their place
    /// The slot of memory of values that are brought, which the group shares with every second one of the same half
    /// whose values are brought.
    int slot = 0;
  };

  std::string name;  ///< "layer 3 feed-forward", "layer 3", "head", "embedding", "layer 9 to layer 4"
  Kind kind;
  std::vector<Parameter*> parameters;
  Layout layout;
  // From allocation on:
  /// [elements]; values that are packed [bytes of chunks]. Values that are brought, and gradients that are sharded, use
  /// a slot that other groups use before and after.
  Tensor values, gradients;
  /// The elements of such values that this rank keeps: its part if they are sharded, else all.
  Tensor own_values;
  Tensor own_gradients;  ///< this rank's part, if they are sharded

  /// The arrival of the values; readers of the parameters wait for it.
  std::shared_ptr<Arrivals> arrivals = std::make_shared<Arrivals>();

  const ValueHome& home() const { return *kind.home; }
  bool sharded() const { return kind.stage >= ZeroStage::kState; }
  bool shards_gradients() const { return kind.trained && kind.stage >= ZeroStage::kGradients; }
  bool shards_values() const { return home().sharded; }
  bool brings_values() const { return home().brought; }
  bool stays_in_files() const { return home().memory == ValueHome::Memory::kFile; }
  /// The part of a rank of the shard group.
  Slice part_of(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return {layout.cuts[r], layout.cuts[r + 1] - layout.cuts[r]};
  }
  /// Layout::cuts in units of `values`: elements, or bytes of chunks.
  const std::vector<int64_t>& value_cuts() const { return kind.packed ? layout.chunk_cuts : layout.cuts; }
  /// Where element `element` of the i-th parameter is in `values`, in the same units.
  int64_t position(size_t i, int64_t element) const;
};

constexpr int64_t kAllLayers = std::numeric_limits<int64_t>::max();
/// Whether layer `index` of `layers` is one of `chosen` that are evenly spread over them: work that alternates between
/// two devices overlaps with the copies for the other one.
constexpr bool is_chosen_layer(int64_t index, int64_t layers, int64_t chosen) {
  return chosen >= layers || (index + 1) * chosen / layers > index * chosen / layers;
}

/// The data in host memory between uses.
struct Offload {
  bool optimizer = false;  ///< moments and masters, which the optimizer's kernels access in place
  bool params = false;     ///< the values of layers, except vectors and other small ones
  bool experts = false;    ///< only those of routed experts
  /// The layers whose experts these are, evenly spread over those that are not computed on the host.
  int64_t expert_layers = kAllLayers;

  bool values() const { return params || experts; }
};

/// This process's rank, the number of ranks, the stage of sharding, and offloading.
struct RankShare {
  int rank = 0, ranks = 1;
  ZeroStage stage = ZeroStage::kNone;
  /// Consecutive ranks that shard together; the groups of so many ranks are replicas of each other. It divides `ranks`.
  /// 0: all ranks.
  int shard_size = 0;
  /// Consecutive ranks over which the routed experts are spread, each with a block of them; it divides shard_ranks().
  /// 1: every rank has all experts. Parameters of spread experts are not sharded.
  int expert_ranks = 1;
  Offload offload = {};
  /// Frozen values of layers, except small ones, stay in the checkpoint's files and are read for each use (kInFile).
  /// They are neither sharded nor offloaded. Not those of experts that are computed on the host.
  bool frozen_in_files = false;
  /// In so many of the layers that have experts, evenly spread over these (is_chosen_layer), the routed experts'
  /// values, adapters, gradients and optimizer's state are in host memory, and are computed there (tape/host_side.h).
  /// What is trained of them is whole on every rank, whatever the stage; what is frozen is in memory that the ranks of
  /// a host share (params/shared_values.h).
  int64_t host_expert_layers = 0;
  /// Consecutive ranks on each host, which share memory there; it divides `ranks`.
  int host_ranks = 1;
  /// Gradients and values of smaller parameters, and of those outside the layers, stay whole on every rank.
  int64_t least_sharded_elements = 100'000;
  /// The device's granularity (core/memory/mapped_memory.h), if values that ranks shard are mapped
  /// (params/mapped_values.h); 0: they are in ordinary memory.
  size_t mapping_granularity = 0;
  /// Gradients of fewer bytes wait for the next group's: a collective begins by waiting for the slowest rank, and
  /// occupies multiprocessors that backward could use. Measured on 2 H200, LoRA on attention of 48 layers: 48
  /// reductions of 1.1 MB made the expert kernels of backward beside them 35 % slower, 17 ms of a step of 640.
  int64_t least_bucket_bytes = int64_t{64} << 20;

  /// The ranks of a shard group, this rank's place among them, and the index of its group.
  int shard_ranks() const { return shard_size > 0 ? shard_size : ranks; }
  int shard_rank() const { return rank % shard_ranks(); }
  int replica() const { return rank / shard_ranks(); }
  /// This rank's place in its expert group, and the index of that group.
  int expert_rank() const { return rank % expert_ranks; }
  int expert_replica() const { return rank / expert_ranks; }
  /// This rank's place among those of its host.
  int host_rank() const { return rank % host_ranks; }
};

/// UserError at `where` unless groups of `shard_size` ranks (0: one group) divide the ranks.
void require_shard_size(int64_t shard_size, int64_t ranks, const std::string& where);
/// The same for experts that are spread over `expert_ranks` of the ranks of a shard group.
void require_expert_ranks(int64_t expert_ranks, int64_t shard_ranks, const std::string& where);

}  // namespace hone
