// RankGroup: this rank among those that train together, once they are connected: agreement on choices, and work that
// one rank does for all. With one rank nothing is communicated.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dist/control/guarded.h"
#include "dist/transport/mesh.h"
#include "train/plan/described_run.h"
#include "train/plan/memory_fit.h"
#include "weights/tensor_file.h"

namespace hone {

/// Writes tensor files into a folder, and adds their checksums.
using WriteFiles = std::function<void(const std::filesystem::path& folder, FileChecksums& checksums)>;

class RankGroup {
 public:
  /// Waits for the other ranks. The context, and tensors that ranks reduce and gather, must outlive this.
  explicit RankGroup(RunContext& context);

  RunContext& context() const { return context_; }
  /// Null with one rank.
  Communicator* communicator() const { return communicator_.get(); }
  /// Forms the groups that shard what is trained. All ranks call it, once.
  void share(const RankShare& share);
  /// Null with one rank, and before share().
  const RankMesh* mesh() const { return mesh_ ? &*mesh_ : nullptr; }

  /// Runs `work`. If it throws, sends the reason to the other ranks first, so that they do not wait.
  template <class Work>
  auto guarded(Work&& work) {
    return hone::guarded(communicator_ ? &communicator_->control() : nullptr, std::forward<Work>(work));
  }

  /// UserError on all ranks if one has another configuration or other data.
  void check_agreement(const DescribedRun& run);
  /// Logs this rank's device; the first rank logs all devices.
  void report_devices();
  /// Sets the step of this rank for messages about lost ranks.
  void at_step(int64_t step);

  /// The following calls are collective. Returns whether `mine` is true on any rank.
  bool on_any(bool mine);
  /// Returns the texts of all ranks.
  std::vector<std::string> exchange(const std::string& mine);
  /// Returns the first text, by rank, that is not empty; "" if all are.
  std::string first_stated(const std::string& mine);
  /// Returns the path of the first rank.
  std::optional<std::filesystem::path> from_first(const std::optional<std::filesystem::path>& path);
  /// The limit of the rank with the least memory, which determines recomputation and whether the run fits.
  MemoryLimit least_memory_limit();
  /// UserError on all ranks if one does not see the first rank's `folder`: ranks on several hosts need a shared one.
  void require_shared(const std::filesystem::path& folder);
  /// Calls `save` on the first rank, with a function by which all ranks write `files` into a folder (RankWriters). The
  /// others return when it has returned.
  void write_together(std::span<const TensorFile> files, const std::function<void(const WriteFiles&)>& save);

  /// After the group has ended: whether this is the lowest surviving rank. Not collective.
  bool is_lowest_survivor() const;

 private:
  RunContext& context_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<RankMesh> mesh_;
};

}  // namespace hone
