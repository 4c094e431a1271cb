#include "dist/transport/mesh.h"

#include "core/base/error.h"
#include "dist/transport/cpu_communicator.h"

namespace hone {

RankMesh::RankMesh(Communicator& world, const RankShare& share) : world_(world), share_(share) {
  const int shard_ranks = share.shard_ranks();
  HONE_ASSERT(world.size() == share.ranks && world.rank() == share.rank);
  HONE_ASSERT(share.ranks % shard_ranks == 0, "the groups have the same number of ranks");
  if (share.expert_ranks > 1) {
    experts_ = world.split(share.expert_replica());
    if (share.expert_ranks < share.ranks) expert_replicas_ = world.split(share.expert_rank());
  }
  if (share.stage == ZeroStage::kNone || shard_ranks == 1) return;
  const bool several = shard_ranks < share.ranks;
  replica_ = share.replica();
  if (several) shards_ = world.split(replica_);
  if (share.stage == ZeroStage::kValues) weights_ = world.split(replica_);
  if (several) replicas_ = world.split(share.shard_rank());
}

Communicator& RankMesh::on_host() const {
  if (!on_host_) {
    const std::shared_ptr<Control> control(std::shared_ptr<void>(),
                                           &world_.control());  // the world's, which outlives it
    on_host_ = std::make_unique<CpuCommunicator>(control, control->connect_memory());
  }
  return *on_host_;
}

std::vector<Communicator*> RankMesh::sums() const {
  std::vector<Communicator*> all{&world_};
  for (const auto* group : {&shards_, &replicas_, &expert_replicas_}) {
    if (*group) all.push_back(group->get());
  }
  return all;
}

}  // namespace hone
