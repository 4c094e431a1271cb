// Identity of the model of a run: what an adapter is trained beside (its base, and how that is held), what each adapter
// adds, and the settings of training. A checkpoint of an adapter has none of the base's weights, so a resumed run
// compares it.
#pragma once

#include <string>

#include "core/text/json_fwd.h"
#include "train/plan/described_run.h"

namespace hone {

/// The base alone: config.json without fields that change nothing, and the hashes of its tensors. UserError as below.
Json base_identity(const LoadedModel& model);

/// What a checkpoint belongs to. A run that trains adapters: config.json of the base without fields that change
/// nothing, hashes of the names, dtypes and shapes of its tensors and of a sample of their values, the formats of
/// packed weights, and rank and scaling of every adapter. The folder's path does not count, nor how tensors are divided
/// over files. Full fine-tuning, whose checkpoints are whole models: only that. In both, the settings that change
/// steps. Before weights are loaded. UserError if the base cannot be read.
Json model_identity(const DescribedModel& model);

struct ModelDifference {
  std::string refused;  ///< "config.json: rms_norm_eps is 1e-05, was 1e-06; …": another model; "" if there is none
  std::string keys;     ///< the configuration keys that bring the stopped run's model back
  std::string named;    ///< settings that may change: "dtype is bfloat16, was float32"
};
ModelDifference model_difference(const Json& before, const Json& now);

}  // namespace hone
