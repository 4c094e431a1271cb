// The first phase of a run: configuration resolved, headers and data read. No weights are read, and nothing is on the
// device.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "config/run_options.h"
#include "data/packing/loader.h"
#include "optim/schedule.h"
#include "session/loaded_model.h"
#include "train/plan/data_setup.h"
#include "train/plan/run_context.h"

namespace hone {

/// A model and the training methods applied to it.
struct DescribedModel {
  RunConfig config;  ///< values that the model determines are filled in
  std::unique_ptr<LoadedModel> model;
  TrainingMethods methods;

  std::filesystem::path tokenizer_directory() const;
};

/// Describes a model whose trainable parameters are set. Fills in router_aux_loss_coef and the adapters' r, alpha and
/// dropout. UserError if the methods need routers and the model has none.
DescribedModel describe_model(RunConfig config, std::unique_ptr<LoadedModel> model);

/// Reads the model folder of the configuration, for the context's device and rank, and for a use. Also fills in
/// max_length, and logs the adapters. UserError: the model does not exist, or the configuration does not fit it.
DescribedModel describe_model(RunConfig config, RunContext& context, RunUse use = RunUse::kTraining);

/// A described model with its data. Members that other members refer to keep their addresses when this is moved.
struct DescribedRun : DescribedModel {
  std::unique_ptr<const LoadedData> loaded;
  Schedule schedule = {};
  std::unique_ptr<Loader> loader;
  std::vector<MicroBatch> eval_batches = {};  ///< empty without evaluation data
  JsonValue data_facts = {};                  ///< what report_data() returned; null before
  BatchCapacity scored = {};                  ///< for texts that an evaluation scores (train/plan/scored_texts.h)

  const TrainingData& data() const { return loaded->data; }
  const Tokenizer* tokenizer() const { return loaded->tokenizer ? &*loaded->tokenizer : nullptr; }
};

/// Reads the data, and fills in all numbers of steps. UserError: as load_data and schedule_of.
DescribedRun describe_run(DescribedModel model, RunContext& context);

/// A run without data, for evaluations that bring their own: it has the tokenizer and the template. UserError: as
/// load_run_tokenizer.
DescribedRun describe_without_data(DescribedModel model);

/// Describes the run again with half the batch per device and twice the accumulation, which keeps the size of an
/// optimizer step; returns false if the batch cannot be halved.
bool halve_batch(DescribedRun& run);

/// UserError if no parameter is trainable.
void require_something_trained(const DescribedModel& model);
/// Logs the parameters by group. UserError if none is trainable.
void report_model(const DescribedModel& model, Logger& logger);
/// Logs the data report, the masks of samples, the size of a step, and warnings (train/plan/run_warnings.h); returns
/// the report's facts (train/plan/data_report.h).
JsonValue report_data(const DescribedRun& run, RunContext& context);

/// Layout of the adapters in the final folder: the configured one, or the one that can hold the trained adapters.
AdapterLayout adapter_layout(const DescribedModel& model);

}  // namespace hone
