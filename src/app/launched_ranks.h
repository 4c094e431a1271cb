// LaunchedRanks: the ranks that a launcher has started, for verbs that support several ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/control/launch_environment.h"
#include "dist/transport/control_channel.h"
#include "report/terminal.h"
#include "train/plan/trainer_ranks.h"

namespace hone {

class LaunchedRanks {
 public:
  /// Returns the run's output_dir for this number of ranks; "" for verbs without one.
  using OutputDir = std::function<std::string(int ranks)>;

  /// Reads the launcher's variables (dist/control/launch_environment.h) and waits for the other ranks, which are then
  /// informed immediately if one fails. Without such variables there is one rank. Calls `output_dir` only if ranks may
  /// be on several hosts and have no secret: they exchange it through a file there (dist/control/run_secret.h).
  explicit LaunchedRanks(const OutputDir& output_dir = {});

  int size() const { return environment_.world_size; }
  /// A line about the ranks for the log.
  std::string describe() const;
  /// Sets the seconds after which a rank that the other ranks wait for is treated as hanging.
  void set_timeout(double seconds);
  /// The trainer's view of the ranks. The trainer takes over the connection when it connects.
  TrainerRanks for_trainer();
  /// Runs `work`. If it fails, tells the other ranks why.
  int run(const std::function<int()>& work);

 private:
  LaunchEnvironment environment_;
  std::unique_ptr<ControlChannel> control_;
};

/// Whether a launcher has started this process as one of several ranks.
bool is_launched();

/// The same for verbs that do not report their errors to the other ranks.
TrainerRanks launched_ranks();

/// The terminal of a rank: standard output for rank 0, none for the other ranks.
Terminal terminal_of(const TrainerRanks& ranks);

/// The prefix of errors, "rank 2: ", in a process that is one of several ranks; otherwise "".
std::string rank_prefix();

}  // namespace hone
