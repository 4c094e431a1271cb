// The trainer as one of several ranks: what they agree on, and what one of them does for all.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "dist/local_process.h"
#include "session/device_facts.h"
#include "train/data_identity.h"
#include "train/shared_state_reader.h"
#include "train/trainer.h"

namespace hone {

bool Trainer::on_any_rank(bool mine) { return communicator_ ? communicator_->control().any(mine) : mine; }

ExitCode Trainer::with_group(const std::function<ExitCode()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    if (communicator_) communicator_->control().fail(reason_of(error));
    logger_.file_only(error.what(), LogLevel::kError);
    throw;
  }
}

void Trainer::connect() {
  if (ranks_.size == 1) return;
  communicator_ = ranks_.connect(stream_);
  HONE_ASSERT(communicator_->size() == ranks_.size && communicator_->rank() == ranks_.rank);
  check_ranks_agree();
}

/// What ranks with other files or settings would do differently, they would do without a word.
void Trainer::check_ranks_agree() {
  Control& control = communicator_->control();
  if (config_writer_.yaml) {
    RunConfig shared = config_;
    shared.machine.threads.reset();
    shared.machine.device = "";
    control.check_same("configuration", config_writer_.yaml(shared));
  }
  control.check_same("data", data_identity(training_data(), config_).dump(1));
}

/// Each rank's log names its device; that of the first rank names all.
void Trainer::report_devices() {
  const std::string own = device_text(stream_.device());
  logger_.info("device {}", own);
  if (!communicator_) return;
  Control& control = communicator_->control();
  const std::vector<std::string> places = control.exchange(fmt::format("{} on {}", own, host_name()));
  if (!writes()) return;
  for (size_t rank = 0; rank < places.size(); ++rank) logger_.debug("rank {}: {}", rank, places[rank]);
}

std::optional<std::filesystem::path> Trainer::from_first_rank(std::optional<std::filesystem::path> path) {
  if (!communicator_) return path;
  const std::string text = communicator_->control().broadcast(path ? path->string() : "", 0);
  return text.empty() ? std::nullopt : std::optional<std::filesystem::path>(text);
}

void Trainer::open_logs() {
  const std::filesystem::path directory = config_.report.output_dir;
  if (ranks_.size == 1) return logger_.open_file((directory / "run.log").string());
  const std::filesystem::path logs = directory / "logs";
  std::error_code error;
  std::filesystem::create_directories(logs, error);
  if (error) throw UserError("the folder cannot be made: " + error.message(), logs.string(), "check its permissions");
  const std::filesystem::path own = logs / fmt::format("rank_{}.log", ranks_.rank);
  if (!writes()) return logger_.open_file(own.string());
  logger_.open_file((directory / "run.log").string());
  std::filesystem::remove(own, error);
  std::filesystem::create_symlink("../run.log", own, error);  // a file system without links has run.log alone
}

/// Ranks choose what to compute again, and whether the run fits, as the one with least memory must.
MemoryLimit Trainer::least_memory_limit() {
  MemoryLimit limit = memory_limit(stream_);
  if (!communicator_) return limit;
  if (stream_.device().kind == DeviceKind::kCpu) {  // they share their host's
    limit.comfortable /= ranks_.local_size;
    limit.most /= ranks_.local_size;
  }
  if (limit.host) *limit.host /= ranks_.local_size;
  for (const std::string& text : communicator_->control().exchange(
           fmt::format("{} {} {}", limit.comfortable, limit.most, limit.host.value_or(0)))) {
    MemoryLimit other;
    std::istringstream(text) >> other.comfortable >> other.most >> other.host.emplace();
    limit.comfortable = std::min(limit.comfortable, other.comfortable);
    limit.most = std::min(limit.most, other.most);
    if (limit.host) limit.host = std::min(*limit.host, *other.host);
  }
  return limit;
}

void Trainer::save_as_survivor(Reporter& reporter) {
  if (!communicator_ || config_.checkpoint.save_strategy == "no" || last_saved_ == state_.step || state_.step == 0)
    return;
  const std::vector<int> lost = communicator_->control().lost();
  const auto is_lost = [&](int rank) { return std::find(lost.begin(), lost.end(), rank) != lost.end(); };
  int lowest = 0;
  while (is_lost(lowest)) ++lowest;
  if (lost.empty() || lowest != ranks_.rank) return;
  if (model_->store().shards_state()) {
    const std::vector<int64_t> steps = checkpoints_.steps();
    logger_.error(
        "the lost rank had a part of the optimizer's state, so step {} cannot be saved; the newest checkpoint is {}",
        state_.step, steps.empty() ? "none" : checkpoints_.path_of(steps.back()).string());
    return;
  }
  // The step under way is not part of it: the update waits for the sums of all ranks.
  try {
    stream_.synchronize();
  } catch (const Error&) {  // of a collective, which is why this is done
  }
  try {
    constexpr std::chrono::seconds kPatience{10};  // the first rank's connection may end before its lock does
    const auto lock = writes() ? nullptr : FolderLock::take_within(config_.report.output_dir, kPatience);
    WholeStateReader state;
    write_checkpoint(reporter, state);
    logger_.warning("step {} was saved before the end: go on with resume=auto", state_.step);
  } catch (const Error& error) {  // why the group ended is what the user has to know first: often the same full disk
    logger_.error("step {} cannot be saved: {}", state_.step, reason_of(error));
  }
}

void Trainer::write_together(const std::function<void(StateReader&)>& write) {
  stream_.synchronize();
  if (!communicator_) {
    WholeStateReader reader;
    return write(reader);
  }
  SharedStateReader reader(*communicator_, stream_, model_->store());
  if (!writes()) return reader.serve();
  write(reader);
  reader.finish();
}

}  // namespace hone
