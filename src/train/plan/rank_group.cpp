#include "train/plan/rank_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "dist/control/local_process.h"
#include "train/plan/data_identity.h"
#include "train/plan/model_identity.h"
#include "train/plan/rank_writers.h"

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
  control.check_same("model", base_identity(*run.model).dump(1));
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

std::string RankGroup::first_stated(const std::string& mine) {
  return communicator_ ? communicator_->control().first_stated(mine) : mine;
}

std::optional<std::filesystem::path> RankGroup::from_first(const std::optional<std::filesystem::path>& path) {
  if (!communicator_) return path;
  const std::string text = communicator_->control().broadcast(path ? path->string() : "", 0);
  return text.empty() ? std::nullopt : std::optional<std::filesystem::path>(text);
}

MemoryLimit RankGroup::least_memory_limit() {
  MemoryLimit limit = memory_limit(context_.stream);
  const int sharing = communicator_ ? context_.ranks.local_size : 1;
  if (limit.host) limit.host = std::max<int64_t>(*limit.host - sharing * kWritingMemory, 0);
  if (!communicator_) return limit;
  return least_of_ranks(limit, context_.device(), context_.ranks.local_size, communicator_->control());
}

void RankGroup::require_shared(const std::filesystem::path& folder) {
  if (!communicator_) return;
  Control& control = communicator_->control();
  // A new file of the first rank: on another file system there is none of this name.
  const std::filesystem::path path =
      folder / control.broadcast(temporary_beside(folder / "shared").filename().string(), 0);
  if (context_.writes()) write_durably(path, "");
  control.barrier();
  const auto is_there = [&] {
    std::error_code error;
    return std::filesystem::exists(path, error);
  };
  constexpr int kTries = 50;  // an NFS client may see a new file some seconds later
  for (int i = 0; i < kTries && !is_there(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::vector<std::string> missing = control.exchange(is_there() ? "" : "on " + host_name());
  std::error_code ignored;
  if (context_.writes()) std::filesystem::remove(path, ignored);
  for (size_t rank = 0; rank < missing.size(); ++rank) {
    if (missing[rank].empty()) continue;
    throw UserError(fmt::format("rank {} {} does not see the output folder of rank 0, and all ranks write checkpoints",
                                rank, missing[rank]),
                    folder.string(), "choose an output_dir that all hosts share (NFS, Lustre, ...)");
  }
}

void RankGroup::write_together(std::span<const TensorFile> files, const std::function<void(const WriteFiles&)>& save) {
  context_.stream.synchronize();
  if (!communicator_) {
    return save([&](const std::filesystem::path& folder, FileChecksums& checksums) {
      write_files(folder, files, &checksums, &context_.pool);
    });
  }
  RankWriters writers(*communicator_, mesh_ ? mesh_->share().shard_ranks() : communicator_->size(), context_.stream,
                      context_.pool, files);
  if (context_.writes()) {
    save([&](const std::filesystem::path& folder, FileChecksums& checksums) { writers.write(folder, checksums); });
  } else {
    writers.serve();
  }
  communicator_->control().barrier();
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
