#include "train/rank_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "dist/local_process.h"
#include "train/data_identity.h"
#include "train/shared_state_reader.h"

namespace hone {

RankGroup::RankGroup(RunContext& context) : context_(context) {
  const TrainerRanks& ranks = context.ranks;
  if (ranks.size == 1) return;
  communicator_ = ranks.connect(context.stream);
  HONE_ASSERT(communicator_->size() == ranks.size && communicator_->rank() == ranks.rank);
}

void RankGroup::share(const RankShare& share) {
  if (!communicator_) return;
  mesh_.emplace(*communicator_, share);
  const int groups = share.ranks / share.shard_ranks();
  if (groups == 1 || share.stage == ZeroStage::kNone) return;
  context_.logger.info("{} groups of {} ranks are replicas of each other; each group shares what zero_stage says",
                       groups, share.shard_ranks());
}

/// Ranks with different files or settings would otherwise train different models without an error.
void RankGroup::check_agreement(const DescribedRun& run) {
  if (!communicator_) return;
  Control& control = communicator_->control();
  if (context_.config_writer.yaml) {
    RunConfig shared = run.config;
    shared.machine.threads.reset();
    shared.machine.device = "";
    control.check_same("configuration", context_.config_writer.yaml(shared));
  }
  control.check_same("size of shard groups", std::to_string(run.config.machine.shard_size));
  control.check_same("data", data_identity(run.data(), run.config).dump(1));
}

void RankGroup::report_devices() {
  const std::string own = device_text(context_.device());
  context_.logger.info("device {}", own);
  if (!communicator_) return;
  const std::vector<std::string> places = exchange(fmt::format("{} on {}", own, host_name()));
  if (!context_.writes()) return;
  for (size_t rank = 0; rank < places.size(); ++rank) context_.logger.debug("rank {}: {}", rank, places[rank]);
}

void RankGroup::at_step(int64_t step) {
  if (communicator_) communicator_->control().at_step(step);
}

bool RankGroup::on_any(bool mine) { return communicator_ ? communicator_->control().any(mine) : mine; }

std::vector<std::string> RankGroup::exchange(const std::string& mine) {
  return communicator_ ? communicator_->control().exchange(mine) : std::vector<std::string>{mine};
}

std::optional<std::filesystem::path> RankGroup::from_first(const std::optional<std::filesystem::path>& path) {
  if (!communicator_) return path;
  const std::string text = communicator_->control().broadcast(path ? path->string() : "", 0);
  return text.empty() ? std::nullopt : std::optional<std::filesystem::path>(text);
}

MemoryLimit RankGroup::least_memory_limit() {
  MemoryLimit limit = memory_limit(context_.stream);
  if (!communicator_) return limit;
  const int sharing = context_.ranks.local_size;
  if (context_.device().kind == DeviceKind::kCpu) {  // ranks share their host's memory
    limit.comfortable /= sharing;
    limit.most /= sharing;
  }
  if (limit.host) *limit.host /= sharing;
  for (const std::string& text :
       exchange(fmt::format("{} {} {}", limit.comfortable, limit.most, limit.host.value_or(0)))) {
    MemoryLimit other;
    std::istringstream(text) >> other.comfortable >> other.most >> other.host.emplace();
    limit.comfortable = std::min(limit.comfortable, other.comfortable);
    limit.most = std::min(limit.most, other.most);
    if (limit.host) limit.host = std::min(*limit.host, *other.host);
  }
  return limit;
}

void RankGroup::write_together(ParameterStore& store, const std::function<void(StateReader&)>& write) {
  context_.stream.synchronize();
  if (!communicator_) {
    WholeStateReader reader;
    return write(reader);
  }
  SharedStateReader reader(mesh_->shards(), context_.stream, store);
  if (!context_.writes()) return reader.serve();
  write(reader);
  reader.finish();
}

bool RankGroup::is_lowest_survivor() const {
  if (!communicator_) return false;
  const std::vector<int> lost = communicator_->control().lost();
  const auto is_lost = [&](int rank) { return std::find(lost.begin(), lost.end(), rank) != lost.end(); };
  int lowest = 0;
  while (is_lost(lowest)) ++lowest;
  return !lost.empty() && lowest == context_.ranks.rank;
}

}  // namespace hone
