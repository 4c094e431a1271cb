#include "app/train/train_verbs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "app/download/download.h"
#include "app/launched_ranks.h"
#include "app/merge/merge.h"
#include "app/output.h"
#include "config/resolved_yaml.h"
#include "config/run_options.h"
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "data/dataset/prepared_files.h"
#include "data/formats/sample_encoder.h"
#include "models/registry.h"
#include "report/console.h"
#include "report/humanise.h"
#include "report/terminal.h"
#include "session/loaded_model.h"
#include "session/model_path.h"
#include "train/plan/data_setup.h"
#include "train/plan/run_vocabulary.h"
#include "train/run/trainer.h"
#include "train/save/run_folder.h"
#include "weights/checkpoint.h"
#include "weights/model_folder.h"

namespace hone {
namespace {

constexpr size_t kMostNotes = 5;  // lines of the console

/// Logs the notes of a configuration and returns it.
ResolvedConfig checked(ResolvedConfig config, Logger& logger) {
  const size_t shown = config.notes.size() <= kMostNotes ? kMostNotes : kMostNotes - 1;
  for (size_t i = 0; i < config.notes.size(); ++i) {
    logger.log(i < shown ? LogLevel::kInfo : LogLevel::kDebug, config.notes[i]);
  }
  if (config.notes.size() > shown) {
    logger.info("{} more notes on keys: run.log has them, and --verbose shows them", config.notes.size() - shown);
  }
  require_keys(config, {"model_name_or_path", "datasets"});
  return config;
}

/// A file in the output folder that records the merged model written by this run, so that a resumed run may replace it.
constexpr const char* kMergedRecord = "merged_by_run.json";

uint32_t manifest_sum(const std::filesystem::path& folder) {
  std::ifstream file(folder / kManifestName, std::ios::binary);
  return crc32c(std::string(std::istreambuf_iterator<char>(file), {}));
}

void record_merge(const std::filesystem::path& output_dir, const std::filesystem::path& merged) {
  const Json record = {{"folder", std::filesystem::canonical(merged).string()}, {"manifest", manifest_sum(merged)}};
  write_text_file(output_dir / kMergedRecord, record.dump(1) + "\n");
}

/// Whether the run in `output_dir` wrote the model in `merged`.
bool merged_by_run(const std::filesystem::path& output_dir, const std::filesystem::path& merged) {
  std::ifstream file(output_dir / kMergedRecord);
  const Json record = parse_json(file);
  std::error_code error;
  return record.is_object() && record.value("folder", "") == std::filesystem::canonical(merged, error).string() &&
         whole_number<uint32_t>(record.value("manifest", Json())) == manifest_sum(merged);
}

/// The options of merge_after_training. Refuses a folder that cannot be written before the run starts.
std::optional<MergeOptions> merge_of(const RunConfig& run) {
  if (!run.checkpoint.merge_after_training || run.model.finetuning_type != FinetuningType::kLora) return std::nullopt;
  const std::string& stated = run.checkpoint.export_dir;
  MergeOptions options{
      .model = run.model.model_name_or_path,
      .adapter = run.report.output_dir,
      .output = stated.empty() ? (std::filesystem::path(run.report.output_dir) / "merged").string() : stated,
      .dtype = {},
      .tolerance = {},
      .threads = static_cast<int>(run.machine.threads.value_or(0)),
      .force = run.checkpoint.overwrite_output_dir};
  options.force |= !run.checkpoint.resume_from_checkpoint.nothing() && merged_by_run(options.adapter, options.output);
  check_inputs_stay(run);
  std::error_code error;
  if (std::filesystem::weakly_canonical(options.output, error) ==
      std::filesystem::weakly_canonical(options.adapter, error)) {
    throw UserError("the merged model would be written over the adapter of the run", "export_dir",
                    "name another folder than output_dir, or leave it out: OUTPUT_DIR/merged");
  }
  if (stated.empty()) check_output_dir(run);  // it says how to go on; of its folder merged there is nothing to add
  try {
    require_free_folder(options.output, options.force);
  } catch (const UserError& taken) {
    throw UserError(taken.message(), taken.where(),
                    "state another export_dir, or move the folder away; overwrite_output_dir=true replaces a model");
  }
  options.output_is_free = true;
  options.written = [adapter = options.adapter, output = options.output] { record_merge(adapter, output); };
  return options;
}

/// Trains, or runs one step if `tries` is set. A standard output that fails is an error at the end: it does not stop a
/// run, whose results are in files.
int train_launched(const RunRequest& request, bool tries, LaunchedRanks& launched) {
  const TrainerRanks ranks = launched.for_trainer();
  Console console(terminal_of(ranks));
  Logger logger(console, request.log_level.value_or(tries ? LogLevel::kDebug : LogLevel::kInfo));
  if (ranks.size > 1) logger.info("{}", launched.describe());
  const ResolvedConfig config =
      checked(load_config(request.config, request.overrides, {ranks.size, ranks.ranks_of_host}), logger);
  launched.set_timeout(static_cast<double>(config.run.machine.ddp_timeout));
  download_for_run(config.run.model.model_name_or_path);
  const auto defaults = [&config](const RunConfig& run) {
    return fmt::format("{}", fmt::join(default_lines({run, {}, config.stated}), ", "));
  };
  const std::optional<MergeOptions> merge = tries ? std::nullopt : merge_of(config.run);
  {
    const auto read = [](const std::filesystem::path& file) { return load_config(file.string(), {}).run; };
    RunContext context(config.run.machine, logger, {resolved_yaml, resolved_pairs, defaults, read}, ranks);
    context.on_metrics = request.on_metrics;
    if (tries) {
      dry_run(config.run, context);
      console.require_written();
      return 0;
    }
    const ExitCode code = train(config.run, context);
    if (code != ExitCode::kOk) return static_cast<int>(code);
  }  // free the model before the merge loads another
  if (merge && ranks.rank == 0) run_merge(*merge);
  console.require_written();
  return 0;
}

}  // namespace

ResolvedConfig load_run(const RunRequest& request, Logger& logger) {
  return checked(load_config(request.config, request.overrides), logger);
}

int run_train(const RunRequest& request, bool dry_run) {
  LaunchedRanks ranks(
      [&](int size) { return load_config(request.config, request.overrides, {size}).run.report.output_dir; });
  return ranks.run([&] { return train_launched(request, dry_run, ranks); });
}

int run_validate(const RunRequest& request) {
  Console console(Terminal::of(1));
  Logger logger(console, request.log_level.value_or(LogLevel::kDebug));
  const RunConfig run = load_run(request, logger).run;
  RunContext context(run.machine, logger);
  validate(run, context);
  logger.info("valid: nothing was written; `hone train` runs it");
  console.require_written();
  return 0;
}

namespace {

/// The fixed seed of shards, so that all nodes get the same division.
constexpr uint64_t kShardSeed = 42;

/// The rule for files of prepare --output, apart from data sets.
OutputRule prepared_rule(const PrepareOptions& options, const RunConfig& run) {
  return output_rule({{options.run.config, "the configuration"},
                      {run.model.model_name_or_path, "the model"},
                      {run.model.tokenizer_name_or_path, "the tokenizer"},
                      {run.data.tokenized_cache, "the token cache"}},
                     options.force);
}

int split_over_nodes(const PrepareOptions& options, const ResolvedConfig& config, Logger& logger) {
  if (options.output.empty()) {
    throw UserError("the folder for the shards is missing", "--output", "state --output DIR");
  }
  if (*options.split_nodes < 1) throw UserError("there must be at least one node", "--split-nodes");
  require_keys(config, {"datasets"});
  const uint64_t seed = config.states("data_seed") || config.states("seed")
                            ? static_cast<uint64_t>(config.run.machine.data_seed)
                            : kShardSeed;
  const NodeShards shards =
      write_node_shards(dataset_entries(config.run.data.datasets),
                        {*options.split_nodes, options.output, seed, prepared_rule(options, config.run)});
  for (const std::filesystem::path& file : shards.files) logger.info("wrote {}", file.string());
  logger.info("{} samples, {} for each of {} nodes{}; statistics in {}", with_commas(shards.total_samples),
              with_commas(shards.samples_per_node), *options.split_nodes,
              shards.total_samples % *options.split_nodes == 0 ? "" : " and the rest for the last",
              shards.statistics.string());
  return 0;
}

/// Writes the samples of data sets of type code as a data set.
int write_code(const PrepareOptions& options, const RunConfig& run, const std::filesystem::path& tokenizer,
               Logger& logger) {
  const bool code = std::all_of(run.data.datasets.begin(), run.data.datasets.end(),
                                [](const DatasetConfig& entry) { return entry.is_code(); });
  if (!code) {
    throw UserError("--output is where --split-nodes writes, and where the samples of type code go", "--output",
                    "tokens go to tokenized_cache: state that key");
  }
  const Tokenizer loaded = Tokenizer::load(tokenizer);
  const SampleEncoder encoder(&loaded, {}, loaded.vocab_size());
  const auto count = [&](std::string_view text) { return encoder.count_tokens(text); };
  OutputRule rule = prepared_rule(options, run);
  rule.inputs.add(tokenizer, "the tokenizer");
  const CodeFile written = write_code_file(dataset_entries(run.data.datasets), count, options.output, rule);
  for (const std::string& line : written.statistics) logger.info("{}", line);
  logger.info("wrote {}: {} samples, of which each is text, its type, file and line", written.path.string(),
              with_commas(written.samples));
  return 0;
}

}  // namespace

namespace {

int prepare_data(const PrepareOptions& options, Logger& logger) {
  ResolvedConfig config = load_config(options.run.config, options.run.overrides);
  for (const std::string& note : config.notes) logger.info("{}", note);
  if (options.split_nodes) return split_over_nodes(options, config, logger);
  require_keys(config, {"model_name_or_path", "datasets"});
  RunConfig& run = config.run;
  const std::filesystem::path directory = resolve_model_path(run.model.model_name_or_path);
  if (!options.output.empty()) return write_code(options, run, tokenizer_directory(run, directory), logger);
  const HfConfig hf = HfConfig::read(directory);
  const DecoderConfig model = read_decoder_config(hf);
  for (const std::string& note : describe_vocabulary(run, hf, directory)) logger.info("{}", note);
  if (!run.data.max_length) {
    run.data.max_length = default_max_length(model);
    logger.info("max_length {} (the model allows {})", *run.data.max_length, model.rope.max_position_embeddings);
  }
  ThreadPool pool(static_cast<int>(run.machine.threads.value_or(0)));
  const std::filesystem::path tokenizer = tokenizer_directory(run, directory);
  const LoadedData loaded = load_data(run, tokenizer, std::max(model.vocab_size, run.model.vocab_rows), pool, logger);
  log_data_report(loaded.data, *run.data.max_length, logger);
  log_proof_sheet(loaded, tokenizer, options.debug, logger);
  if (run.data.tokenized_cache.empty()) {
    logger.info("nothing was written; tokenized_cache: FOLDER keeps the tokens for the runs that follow");
  }
  return 0;
}

}  // namespace

int run_prepare(const PrepareOptions& options) {
  Console console(Terminal::of(1));
  Logger logger(console, options.run.log_level.value_or(LogLevel::kDebug));
  const int code = prepare_data(options, logger);
  console.require_written();
  return code;
}

}  // namespace hone
