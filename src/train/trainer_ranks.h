// The ranks of a run as one of them sees them: what a launcher says, and how they come together.
#pragma once

#include <functional>
#include <memory>

#include "dist/communicator.h"

namespace hone {

struct TrainerRanks {
  int rank = 0, size = 1;
  int local_rank = 0;  ///< among those of the host: the GPU it takes
  int local_size = 1;
  int cores_shared_by = 1;  ///< ranks of the host that may run on the same cores
  /// Called by all when the data have been read, however long that took one of them. Null for one rank.
  std::function<std::unique_ptr<Communicator>(Stream&)> connect = {};
};

}  // namespace hone
