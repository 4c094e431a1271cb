// RankMesh: the communicators of ranks that train together: all of them, the groups that share state, and those over
// which experts are spread. Rank `replica` · shard ranks + `place` keeps part `place`; a group's ranks are consecutive,
// so they are on one host if its ranks are a multiple of the group's. Ranks of different groups that have the same
// place keep the same part. Source of the scheme: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
// Parallel" (arXiv:2304.11277), hybrid sharding.
#pragma once

#include <memory>
#include <vector>

#include "dist/transport/communicator.h"
#include "params/bucket.h"

namespace hone {

class RankMesh {
 public:
  /// `world` has all ranks of `share` and must outlive this. All ranks call it, and destroy it together.
  RankMesh(Communicator& world, const RankShare& share);

  Communicator& world() const { return world_; }
  /// This rank's group, for sums of gradients, and for values after a step. Without sharding, all ranks.
  Communicator& shards() const { return shards_ ? *shards_ : world_; }
  /// The same ranks in a lane of its own, for values before their use.
  Communicator& weights() const { return weights_ ? *weights_ : world_; }
  /// The ranks that keep the same part, for sums over groups; null if there is one group.
  Communicator* replicas() const { return replicas_.get(); }
  /// The index of this rank's group.
  int replica() const { return replica_; }
  /// The ranks over which experts are spread, in a lane of its own; null if every rank has all.
  Communicator* experts() const { return experts_.get(); }
  /// The ranks that keep the same block of experts, for sums of its gradients; null if there is one group.
  Communicator* expert_replicas() const { return expert_replicas_.get(); }
  /// All ranks, for tensors in host memory whatever the device is: its collectives run in the stream of a CPU beside
  /// the device's. All ranks make the first call together; it connects them.
  Communicator& on_host() const;
  const RankShare& share() const { return share_; }

  /// The communicators that sum gradients on the device.
  std::vector<Communicator*> sums() const;

 private:
  Communicator& world_;
  RankShare share_;
  std::unique_ptr<Communicator> shards_, weights_;
  std::unique_ptr<Communicator> experts_, expert_replicas_;
  mutable std::unique_ptr<Communicator> on_host_;
  std::unique_ptr<Communicator> replicas_;  // last: its collectives follow those of shards_
  int replica_ = 0;
};

}  // namespace hone
