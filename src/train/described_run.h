// The first phase of a run: what it trains and on what. Configuration resolved, headers and data read; no weight is
// read, and nothing is on the device.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "data/loader.h"
#include "optim/schedule.h"
#include "session/loaded_model.h"
#include "train/data_setup.h"
#include "train/run_context.h"

namespace hone {

/// A model and what is done with it.
struct DescribedModel {
  RunConfig config;  ///< with what the model leaves no choice in filled in
  std::unique_ptr<LoadedModel> model;
  TrainingMethods methods;

  std::filesystem::path tokenizer_directory() const;
};

/// Of a model whose trainable parameters are set. Fills in router_aux_loss_coef and the adapters' r, alpha and dropout.
/// UserError if the methods need routers and there are none.
DescribedModel describe_model(RunConfig config, std::unique_ptr<LoadedModel> model);

/// Of the folder that the configuration names, for the context's device and rank. Fills in max_length, too, and logs
/// the adapters. UserError: no such model, or one that the configuration does not fit.
DescribedModel describe_model(RunConfig config, RunContext& context);

/// And its data. Those that refer to others of these stay where they are when this moves.
struct DescribedRun : DescribedModel {
  std::unique_ptr<const LoadedData> loaded;
  Schedule schedule = {};
  std::unique_ptr<Loader> loader;
  std::vector<MicroBatch> eval_batches = {};  ///< empty without evaluation data

  const TrainingData& data() const { return loaded->data; }
  const Tokenizer* tokenizer() const { return loaded->tokenizer ? &*loaded->tokenizer : nullptr; }
};

/// Reads the data, and fills in every number of steps. UserError: what load_data and schedule_of refuse.
DescribedRun describe_run(DescribedModel model, RunContext& context);

/// Describes the run with half the batch on the device and twice the accumulation, so that an optimizer step stays what
/// it is; false if it cannot be halved.
bool halve_batch(DescribedRun& run);

/// Logs the parameters by group. UserError if none is trained.
void report_model(const DescribedModel& model, Logger& logger);
/// Logs the data report, the mask of samples and the size of a step.
void report_data(const DescribedRun& run, RunContext& context);

/// The layout of adapters in the final folder: the configured one, or the one that holds what is trained.
AdapterLayout adapter_layout(const DescribedModel& model);

}  // namespace hone
