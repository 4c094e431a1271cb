// Loads the data of a run before its first step, with progress or from the token cache, and logs reports.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "core/cpu/thread_pool.h"
#include "data/dataset/dataset_builder.h"
#include "report/log.h"
#include "text/named_templates.h"
#include "text/tokenizer.h"

namespace hone {

/// The tokenizer of a run, with its special tokens as the configuration says, and its template.
struct RunTokenizer {
  std::optional<Tokenizer> tokenizer;  ///< without one only tokenized data can be read
  ChosenTemplate chat_template;
};

/// Reads the tokenizer of a folder, if it has one. UserError as choose_template, and where tokenizer_name_or_path names
/// a folder without one.
RunTokenizer load_run_tokenizer(const RunConfig& config, const std::filesystem::path& directory);

struct LoadedData {
  std::optional<Tokenizer> tokenizer;  ///< the model's; without one only tokenized data can be read
  TrainingData data;
  std::string chat_template;  ///< Jinja; empty: the model's own
};

/// Reads the data sets of `config` for a model, and logs cache use and reading speed. max_length must be set.
/// UserError: as build_training_data.
LoadedData load_data(const RunConfig& config, const std::filesystem::path& tokenizer_directory, int64_t vocab_size,
                     ThreadPool& pool, Logger& logger);

/// The tokenizer and the template alone.
LoadedData load_no_data(const RunConfig& config, const std::filesystem::path& tokenizer_directory, int64_t vocab_size);

/// Logs the data report and its warnings (train/plan/data_report.h), and returns its facts.
JsonValue log_data_report(const TrainingData& data, int64_t max_length, Logger& logger);

/// Logs three samples with their masks, or `samples` complete ones, and the checks of BOS and end of turn.
void log_proof_sheet(const LoadedData& loaded, const std::filesystem::path& tokenizer_directory,
                     std::optional<int64_t> samples, Logger& logger);

}  // namespace hone
