// The data of a run before its first step: read with progress, or found in the cache, and told of.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/thread_pool.h"
#include "data/dataset_builder.h"
#include "report/log.h"
#include "session/run_config.h"
#include "text/tokenizer.h"

namespace hone {

struct LoadedData {
  std::optional<Tokenizer> tokenizer;  ///< the model's; none: only tokenized data can be read
  TrainingData data;
  std::string chat_template;  ///< the configuration's; empty: the model's own
};

/// Reads the data sets of `config` for a model, and logs what became of the cache and how fast rows were
/// read. max_length must be set. UserError: what build_training_data refuses.
LoadedData load_data(const RunConfig& config, const std::filesystem::path& tokenizer_directory, int64_t vocab_size,
                     ThreadPool& pool, Logger& logger);

/// Logs the data report and its warnings (train/data_report.h).
void log_data_report(const TrainingData& data, int64_t max_length, Logger& logger);

/// Logs three samples with their masks, or `samples` of them whole, and how texts begin and answers end.
void log_proof_sheet(const LoadedData& loaded, const std::filesystem::path& tokenizer_directory,
                     std::optional<int64_t> samples, Logger& logger);

}  // namespace hone
