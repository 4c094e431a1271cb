// The ranks that a launcher has started this process among, for verbs that several ranks run together.
#pragma once

#include "report/terminal.h"
#include "train/trainer_ranks.h"

namespace hone {

/// From the launcher's variables (dist/launch_environment.h); one rank without them.
TrainerRanks launched_ranks();

/// Where a rank prints: the first to `fd`, the others nowhere.
Terminal terminal_of(const TrainerRanks& ranks, int fd = 1);

}  // namespace hone
