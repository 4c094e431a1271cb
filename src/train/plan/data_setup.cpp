#include "train/plan/data_setup.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "config/run_options.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "report/terminal.h"
#include "session/model_path.h"
#include "text/tokenizer_config.h"
#include "train/plan/adapter_tokenizer.h"
#include "train/plan/data_report.h"
#include "weights/model_folder.h"

namespace hone {

namespace {

void log_all(const DataReport& report, Logger& logger) {
  Console& console = logger.console();
  const auto fitting = [&](const std::string& text) {
    return console.interactive() ? wrap(text, console.width(), "") : text;
  };
  console.line(fitting((logger.shows(LogLevel::kDebug) ? report.detail : report.brief) + report.text));
  logger.file_only(report.detail + report.text);
  for (const std::string& warning : report.warnings) logger.warning("{}", warning);
}

}  // namespace

RunTokenizer load_run_tokenizer(const RunConfig& config, const std::filesystem::path& directory) {
  RunTokenizer loaded;
  if (std::filesystem::exists(directory / "tokenizer.json")) {
    const bool of_adapter = std::filesystem::exists(directory / "adapter_config.json");
    const NewTokens more = new_tokens(config);
    loaded.tokenizer = of_adapter
                           ? load_tokenizer_beside(resolve_model_path(config.model.model_name_or_path), directory, more)
                           : Tokenizer::load(directory, more);
    if (const NamedTemplate* named = find_named_template(config.data.chat_template))
      require_tokens(*named, *loaded.tokenizer, "chat_template");
    loaded.tokenizer->choose(token_choice(config.data));
    loaded.chat_template = choose_template(config.data.chat_template, *loaded.tokenizer, "chat_template");
  } else if (!config.model.tokenizer_name_or_path.empty()) {
    throw UserError("the folder has no tokenizer.json", directory.string(),
                    "name a folder that has one in tokenizer_name_or_path");
  }
  return loaded;
}

LoadedData load_data(const RunConfig& config, const std::filesystem::path& tokenizer_directory, int64_t vocab_size,
                     ThreadPool& pool, Logger& logger) {
  using Clock = std::chrono::steady_clock;
  RunTokenizer chosen = load_run_tokenizer(config, tokenizer_directory);
  if (!chosen.chat_template.note.empty()) logger.info("{}", chosen.chat_template.note);
  LoadedData loaded;
  loaded.tokenizer = std::move(chosen.tokenizer);
  const DataOptions options = data_options(config, vocab_size, tokenizer_directory, chosen.chat_template.text);
  loaded.chat_template = options.chat.chat_template;
  std::map<std::string, int64_t> bytes;  // bytes read per data set
  const Clock::time_point begin = Clock::now();
  const auto progress = [&](const DataProgress& at) {
    if (at.waiting) logger.info("tokenized_cache: another process builds {}: waiting for it", at.dataset);
    bytes[std::string(at.dataset)] = at.bytes_read;
    logger.console().set_progress(
        {.label = "read " + std::string(at.dataset), .done = at.bytes_read, .total = at.bytes_total});
  };
  loaded.data = build_training_data(options, loaded.tokenizer ? &*loaded.tokenizer : nullptr, pool, progress);
  logger.console().clear_progress();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  int64_t total = 0;
  for (const auto& [name, read] : bytes) total += read;
  for (const std::string& line : loaded.data.cache_lines) logger.info("{}", line);
  if (total > 0) {
    const double megabytes = static_cast<double>(total) / 1e6;
    logger.info("data: {:.1f} MB read and tokenised in {:.1f} s, {:.1f} MB/s with {} threads", megabytes, seconds,
                megabytes / seconds, pool.size());
  }
  return loaded;
}

LoadedData load_no_data(const RunConfig& config, const std::filesystem::path& tokenizer_directory, int64_t vocab_size) {
  RunTokenizer chosen = load_run_tokenizer(config, tokenizer_directory);
  LoadedData loaded;
  loaded.tokenizer = std::move(chosen.tokenizer);
  loaded.chat_template =
      data_options(config, vocab_size, tokenizer_directory, chosen.chat_template.text).chat.chat_template;
  return loaded;
}

JsonValue log_data_report(const TrainingData& data, int64_t max_length, Logger& logger) {
  const Console& console = logger.console();
  DataReport report = data_report(data, max_length, console.interactive() ? console.width() : 0, console.color());
  log_all(report, logger);
  constexpr int kDecisions = 3;  // shown on the console
  int shown = 0;
  for (const auto* reports : {&data.train_reports, &data.eval_reports}) {
    for (const DatasetReport& set : *reports) {
      if (!set.decision.empty()) {
        logger.log(shown++ < kDecisions ? LogLevel::kInfo : LogLevel::kDebug,
                   fmt::format("data {}: {}", set.name, set.decision));
      }
      const std::string unused = set.unused_columns_text();
      if (!unused.empty()) logger.info("data {}: {}", set.name, unused);
      for (const std::string& line : set.asked_otherwise_lines()) logger.warning("data {}: {}", set.name, line);
    }
  }
  for (const std::string& warning : data.warnings) logger.warning("{}", warning);
  return std::move(report.facts);
}

void log_proof_sheet(const LoadedData& loaded, const std::filesystem::path& tokenizer_directory,
                     std::optional<int64_t> samples, Logger& logger) {
  const Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  const TokenizerConfig config = tokenizer ? read_tokenizer_config(tokenizer_directory) : TokenizerConfig();
  log_all(proof_sheet(loaded.data, tokenizer, config, samples, logger.console().color()), logger);
}

}  // namespace hone
