// The ranks of a run as seen by one of them: values from the launcher, and the function that connects them.
#pragma once

#include <functional>
#include <memory>

#include "dist/transport/communicator.h"

namespace hone {

struct TrainerRanks {
  int rank = 0, size = 1;
  int local_rank = 0;  ///< index among the ranks of the host, selects the GPU
  int local_size = 1;
  int cores_shared_by = 1;  ///< ranks of the host that may run on the same cores
  int ranks_of_host = 1;    ///< consecutive ranks on each host; 0: hosts have different numbers, or other ranks
  /// Called by all ranks when the data have been read. Null for one rank.
  std::function<std::unique_ptr<Communicator>(Stream&)> connect = {};
};

}  // namespace hone
