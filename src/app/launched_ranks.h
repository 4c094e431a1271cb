// The ranks that a launcher has started this process among, for verbs that several ranks run together.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/control_channel.h"
#include "dist/launch_environment.h"
#include "report/terminal.h"
#include "train/trainer_ranks.h"

namespace hone {

class LaunchedRanks {
 public:
  /// The run's output_dir where it is trained by so many ranks; "" for verbs that have none.
  using OutputDir = std::function<std::string(int ranks)>;

  /// Reads the launcher's variables (dist/launch_environment.h) and waits for the other ranks: from here on they learn
  /// at once if one of them fails. One rank without such variables. `output_dir` is asked for only where ranks of
  /// several hosts were given no secret: they meet by a file there (dist/run_secret.h).
  explicit LaunchedRanks(const OutputDir& output_dir = {});

  int size() const { return environment_.world_size; }
  /// Who is there, for the log: a line.
  std::string describe() const;
  /// Seconds after which a rank that the others wait for counts as hanging.
  void set_timeout(double seconds);
  /// What the trainer is told; it takes the connection over when it connects.
  TrainerRanks for_trainer();
  /// Runs `work`; if it fails, the other ranks are told why.
  int run(const std::function<int()>& work);

 private:
  LaunchEnvironment environment_;
  std::unique_ptr<ControlChannel> control_;
};

/// The same for verbs that tell the others nothing of their own errors.
TrainerRanks launched_ranks();

/// Where a rank prints: the first to standard output, the others nowhere.
Terminal terminal_of(const TrainerRanks& ranks);

/// "rank 2: " before an error of a process that is one of several ranks; otherwise "".
std::string rank_prefix();

}  // namespace hone
