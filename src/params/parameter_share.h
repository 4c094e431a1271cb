// ParameterShare: the elements of a parameter that this rank keeps, and those of other ranks.
#pragma once

#include "core/base/tensor.h"
#include "params/slice.h"

namespace hone {

struct Bucket;

class ParameterShare {
 public:
  /// All of a shape.
  explicit ParameterShare(const Shape& shape) : local_shape_(shape), elements_(shape.numel()) {}

  /// The shape of what ops on this rank read and write: of all experts, or of this rank's block [E / N, ...].
  const Shape& local_shape() const { return local_shape_; }
  /// Whether the experts are spread over the ranks of an expert group (RankShare), of which this rank has a block. The
  /// value, gradient and optimizer's state then are the block's.
  bool spread() const { return expert_ranks_ > 1; }
  /// Whether ranks shard it, as its bucket's stage says (params/bucket.h). The optimizer's state then has only the
  /// elements of own(), in one dimension, and so have gradients and values in the stages that shard them.
  bool sharded() const { return sharded_; }
  /// Its bucket (params/bucket.h); null: none.
  const Bucket* bucket() const { return bucket_; }

  /// The elements that this rank keeps: all of them unless sharded or spread. Begins at a multiple of kMomentBlock if
  /// any state has 8 bits.
  Slice own() const { return spread() ? block_of(expert_rank_) : slice_of(rank_); }
  /// The elements that files get from a rank of the first shard group. All ranks of an expert group and those that keep
  /// the same blocks are in it; the first expert group gives the blocks, the others nothing.
  Slice slice_of(int rank) const;
  /// The elements of own() in a tensor that has all that ops write: the tensor itself unless sharded.
  Tensor own_part(const Tensor& whole) const;

 private:
  friend class ParameterStore;

  /// The elements of the experts of a rank of the expert group.
  Slice block_of(int expert_rank) const { return {expert_rank * local_shape_.numel(), local_shape_.numel()}; }

  Shape local_shape_;
  int64_t elements_;  ///< in the whole parameter
  const Bucket* bucket_ = nullptr;
  bool sharded_ = false;
  int64_t bucket_offset_ = 0;  ///< if it is sharded
  int rank_ = 0;               ///< in the shard group
  int expert_rank_ = 0;        ///< in the expert group
  int expert_ranks_ = 1;       ///< ranks of the expert group; 1 for what is not of experts
};

}  // namespace hone
