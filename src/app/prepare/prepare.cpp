#include "app/prepare/prepare.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/config/resolve.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "data/prepared_files.h"
#include "data/sample_encoder.h"
#include "models/registry.h"
#include "report/humanise.h"
#include "report/terminal.h"
#include "session/loaded_model.h"
#include "train/data_setup.h"
#include "train/run_options.h"

namespace hone {

namespace {

/// The seed that the shards of one data set have had everywhere.
constexpr uint64_t kShardSeed = 42;

int split_over_nodes(const PrepareOptions& options, const ResolvedConfig& config, Logger& logger) {
  if (options.output.empty()) {
    throw UserError("there is no folder to write the shards to", "--output", "state --output DIR");
  }
  if (*options.split_nodes < 1) throw UserError("there must be at least one node", "--split-nodes");
  require_keys(config, {"datasets"});
  const uint64_t seed = config.states("data_seed") || config.states("seed")
                            ? static_cast<uint64_t>(config.run.machine.data_seed)
                            : kShardSeed;
  const NodeShards shards =
      write_node_shards(dataset_entries(config.run.data.datasets), {*options.split_nodes, options.output, seed});
  for (const std::filesystem::path& file : shards.files) logger.info("wrote {}", file.string());
  logger.info("{} samples, {} for each of {} nodes{}; statistics in {}", with_commas(shards.total_samples),
              with_commas(shards.samples_per_node), *options.split_nodes,
              shards.total_samples % *options.split_nodes == 0 ? "" : " and the rest for the last",
              shards.statistics.string());
  return 0;
}

/// The samples of repositories as a data set of their own.
int write_code(const PrepareOptions& options, const RunConfig& run, const std::filesystem::path& tokenizer,
               Logger& logger) {
  const bool code = std::all_of(run.data.datasets.begin(), run.data.datasets.end(),
                                [](const DatasetConfig& entry) { return entry.type == "code"; });
  if (!code) {
    throw UserError("--output is where --split-nodes writes, and where the samples of type code go", "--output",
                    "tokens go to tokenized_cache: state that key");
  }
  const Tokenizer loaded = Tokenizer::load(tokenizer);
  const SampleEncoder encoder(&loaded, {}, loaded.vocab_size());
  const auto count = [&](std::string_view text) { return encoder.count_tokens(text); };
  const CodeFile written = write_code_file(dataset_entries(run.data.datasets), count, options.output);
  for (const std::string& line : written.statistics) logger.info("{}", line);
  logger.info("wrote {}: {} samples, of which each is text, its type, file and line", written.path.string(),
              with_commas(written.samples));
  return 0;
}

}  // namespace

int run_prepare(const PrepareOptions& options) {
  Console console(Terminal::of(1));
  Logger logger(console, options.run.log_level.value_or(LogLevel::kDebug));
  ResolvedConfig config = load_config(options.run.config, options.run.overrides);
  for (const std::string& note : config.notes) logger.info("{}", note);
  if (options.split_nodes) return split_over_nodes(options, config, logger);
  require_keys(config, {"model_name_or_path", "datasets"});
  RunConfig& run = config.run;
  const std::filesystem::path directory = resolve_model_path(run.model.model_name_or_path);
  if (!options.output.empty()) return write_code(options, run, tokenizer_directory(run, directory), logger);
  const DecoderConfig model = read_decoder_config(HfConfig::read(directory));
  if (!run.data.max_length) {
    run.data.max_length = default_max_length(model);
    logger.info("max_length {} (the model allows {})", *run.data.max_length, model.rope.max_position_embeddings);
  }
  ThreadPool pool(static_cast<int>(run.machine.threads.value_or(0)));
  const std::filesystem::path tokenizer = tokenizer_directory(run, directory);
  const LoadedData loaded = load_data(run, tokenizer, model.vocab_size, pool, logger);
  log_data_report(loaded.data, *run.data.max_length, logger);
  log_proof_sheet(loaded, tokenizer, options.debug, logger);
  if (run.data.tokenized_cache.empty()) {
    logger.info("nothing was written; tokenized_cache: FOLDER keeps the tokens for the runs that follow");
  }
  return 0;
}

}  // namespace hone
