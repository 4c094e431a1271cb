// What a run writes: bytes of its final model, of a checkpoint, of all that are there at once, and of a merged model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "params/parameter_store.h"

namespace hone {

struct DiskNeeds {
  int64_t model = 0;             ///< the final model or adapter; with load_best_model_at_end also the best weights
  int64_t checkpoint = 0;        ///< one; 0: none are written
  std::optional<int64_t> count;  ///< how many at once, the one that is being written included; unset: all are kept
  int64_t merged = 0;            ///< the model with the adapter merged; 0: none

  /// The sum; without checkpoints where all of them are kept.
  int64_t total() const { return model + checkpoint * count.value_or(0) + merged; }
};

/// What a run of one rank needs, whose store has been allocated, if only dry, with its trainable parameters. Logs and
/// headers of files are not counted.
DiskNeeds disk_needs(const ParameterStore& store, const RunConfig& config);

/// "Disk: adapter 27.3 MB; checkpoints 109 MB each, up to 4 at once; 464 MB in all."
std::string disk_line(const DiskNeeds& needs, const RunConfig& config);

}  // namespace hone
