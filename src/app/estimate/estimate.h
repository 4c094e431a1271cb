// hone estimate: the memory that a run needs, from the model's headers alone.
#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "train/step/engine.h"

namespace hone {

struct EstimateOptions {
  std::string target;                  ///< a configuration, a model as find_model() takes it, or the first key=value
  std::vector<std::string> overrides;  ///< key=value
  int64_t memory = 0;                  ///< bytes of the device, all of them for this run; 0: what is free on the device
  int64_t host_memory = 0;             ///< bytes for offloading of each rank; 0: what is free here, if that is known
  std::string gpu;                     ///< plans for a GPU of this name (core/cuda/gpu_models.h); "" = as above
  int64_t ranks = 1;                   ///< that train together; what is planned is one's
  int64_t ranks_of_host = 0;           ///< ranks on one host; 0: 8, a usual host's GPUs, or all if there are fewer
  bool json = false;
};

/// What a run of this configuration allocates on its device: the plan that training makes, for full micro-batches of
/// per_device_train_batch_size × max_length tokens (max_length must be set). Reads no weight and no data; of the model
/// config.json will do.
MemoryPlan plan_memory(const RunConfig& config, const RecomputePolicy& recompute, Stream& stream);

/// Why no setting makes a model fit on this machine, by config.json alone; "" if one does. `model` as find_model()
/// takes it.
std::string why_nothing_fits(const std::string& model);

/// Prints the plan of the configured run by group, of full fine-tuning and LoRA with and without gradient
/// checkpointing, and what would make the run fit in the device's free memory. The device is the configuration's; a GPU
/// need not be there. Returns the exit code, 0 also where the run does not fit.
int run_estimate(const EstimateOptions& options);

}  // namespace hone
