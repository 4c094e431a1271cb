// RankGroup: this rank among those that train together, from the moment they are connected: what they agree on, and
// what one of them does for all. A run of one rank is a group that asks nobody.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "train/described_run.h"
#include "train/memory_fit.h"
#include "weights/tensor_pieces.h"

namespace hone {

class RankGroup {
 public:
  /// Waits for the other ranks. The context outlives this; what ranks reduce and gather does, too.
  explicit RankGroup(RunContext& context);

  RunContext& context() const { return context_; }
  /// Null for one rank.
  Communicator* communicator() const { return communicator_.get(); }

  /// Runs `work`. Where it fails on this rank the others are told why, before anything that they may wait for goes.
  template <class Work>
  auto guarded(Work&& work) {
    try {
      return work();
    } catch (const std::exception& error) {
      if (communicator_) communicator_->control().fail(reason_of(error));
      throw;
    }
  }

  /// UserError on all ranks where one has another configuration or other data.
  void check_agreement(const DescribedRun& run);
  /// Logs this rank's device; the first rank's log names all.
  void report_devices();
  /// Which step this rank is at, for messages about lost ranks.
  void at_step(int64_t step);

  /// All of these wait for all ranks. Whether it is so on some rank:
  bool on_any(bool mine);
  /// The text of each rank.
  std::vector<std::string> exchange(const std::string& mine);
  /// What the first rank gives.
  std::optional<std::filesystem::path> from_first(const std::optional<std::filesystem::path>& path);
  /// Of the rank with least memory: ranks choose what to recompute, and whether the run fits, as that one must.
  MemoryLimit least_memory_limit();
  /// `write` on the first rank, with all values and state of all ranks at hand; the others serve it.
  void write_together(ParameterStore& store, const std::function<void(StateReader&)>& write);

  /// Once the group has ended: whether this is the lowest rank that is left. Asks nobody.
  bool is_lowest_survivor() const;

 private:
  RunContext& context_;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace hone
