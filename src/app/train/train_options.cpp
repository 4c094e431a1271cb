#include "app/train/train_options.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <functional>
#include <utility>

#include "app/verbs.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

namespace {

/// The keys that nearly every configuration states, for the help of hone train.
constexpr std::pair<const char*, const char*> kUsualKeys[] = {
    {"model_name_or_path", "folder of the model"},
    {"datasets", "a file or folder of rows; in a file also a list of them"},
    {"finetuning_type", "lora: small adapters; full: all weights"},
    {"base_weight_dtype", "nf4: the frozen weights beside adapters in 4 bits (QLoRA)"},
    {"max_length", "tokens of a sample"},
    {"num_train_epochs", "passes over the data; or max_steps"},
    {"per_device_train_batch_size", "sequences at once: memory grows with it"},
    {"global_batch_size", "sequences of a step, of all ranks together"},
    {"learning_rate", "1e-4 is usual for adapters, 1e-5 for all weights"},
    {"output_dir", "where model, checkpoints and metrics go"},
};

std::string usual_keys_text() {
  std::string text = "\n\nKeys that nearly everybody sets, in the file or as key=value:\n";
  for (const auto& [key, what] : kUsualKeys) text += fmt::format("  {:<28} {}\n", key, what);
  return text + "All keys: docs/config.md, or hone schema --markdown. hone init writes a file with comments.";
}

/// What a command line of hone train asks for.
using TrainCall = std::function<void(const RunRequest& request, bool dry_run)>;

void add_train_verb(CLI::App& app, const TrainCall& call) {
  CLI::App* verb = add_verb(app, "train", "Fine-tune a model",
                            "  hone train run.yaml\n"
                            "  hone train run.yaml learning_rate=2e-5 --max_steps 100\n"
                            "  hone train run.yaml --dry-run        everything but training: nothing is written\n"
                            "  hone train run.yaml resume=auto      go on where the run stopped");
  verb->footer(verb->get_footer() + usual_keys_text());
  auto options = add_config(verb);
  auto dry_run = std::make_shared<bool>();
  verb->add_flag("--dry-run", *dry_run,
                 "load, show a sample, the memory plan and what a packed base costs, run one step, estimate the time");
  add_tier(verb);
  verb->callback([=] { call(request_of(*options, verb->remaining()), *dry_run); });
}

}  // namespace

std::shared_ptr<ConfigOptions> add_config(CLI::App* verb) {
  auto options = std::make_shared<ConfigOptions>();
  verb->add_option("CONFIG,--config", options->config,
                   "YAML or JSON file; then key=value or --key value to change keys");
  verb->add_option("--log-level", options->log_level, "trace, debug, info, warning, error or off");
  verb->add_flag("--verbose", options->verbose, "all that run.log has: --log-level debug");
  return options;
}

RunRequest request_of(const ConfigOptions& options, std::vector<std::string> overrides) {
  RunRequest request;
  if (is_override(options.config)) {
    overrides.insert(overrides.begin(), options.config);
  } else {
    request.config = options.config;
  }
  if (request.config.empty() && overrides.empty()) {
    throw UserError("no configuration is given", "CONFIG", "hone init MODEL writes one");
  }
  request.overrides = std::move(overrides);
  if (options.log_level.empty()) {
    if (options.verbose) request.log_level = LogLevel::kDebug;
    return request;
  }
  const std::optional<LogLevel> level = parse_log_level(options.log_level);
  if (!level) {
    throw UserError("'" + options.log_level + "' is not a log level", "--log-level",
                    "use trace, debug, info, warning, error or off");
  }
  request.log_level = level;
  return request;
}

void add_train(CLI::App& app, Action& action) {
  add_train_verb(app, [&action](const RunRequest& request, bool dry_run) {
    action = [=] { return run_train(request, dry_run); };
  });
}

std::optional<RunRequest> parse_train(const std::vector<std::string>& words) {
  CLI::App app;
  std::optional<RunRequest> request;
  add_train_verb(app, [&](const RunRequest& asked, bool) { request = asked; });
  std::vector<const char*> command = {"hone"};
  for (const std::string& word : words) command.push_back(word.c_str());
  try {
    std::vector<std::string> arguments = arguments_of(app, static_cast<int>(command.size()), command.data());
    std::reverse(arguments.begin(), arguments.end());  // CLI11's order
    app.parse(std::move(arguments));
  } catch (const CLI::Error&) {
    return std::nullopt;
  }
  return request;
}

void add_validate(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "validate", "Check a configuration, its model and its data; writes nothing",
                            "  hone validate run.yaml");
  auto options = add_config(verb);
  verb->callback([=, &action] { action = [=] { return run_validate(request_of(*options, verb->remaining())); }; });
}

void add_prepare(CLI::App& app, Action& action) {
  CLI::App* verb =
      add_verb(app, "prepare", "Tokenise data sets and report on them: lengths, masks, duplicates, leaks",
               "  hone prepare run.yaml\n"
               "  hone prepare run.yaml --debug 5              five samples whole, with their masks\n"
               "  hone prepare run.yaml tokenized_cache=cache  keep the tokens\n"
               "  hone prepare datasets=faq.jsonl --split-nodes 4 --output data\n"
               "  hone prepare --input faq.csv --num_nodes 4 --output_dir data    the same, in a guide's words");
  verb->alias("preprocess");
  auto options = std::make_shared<PrepareOptions>();
  auto config = add_config(verb);
  verb->add_option("--debug", options->debug, "show so many samples whole")->check(CLI::PositiveNumber);
  verb->add_option("--split-nodes,--num-nodes,--num_nodes", options->split_nodes,
                   "shuffle the rows and write one file for each node");
  add_output(verb, "--output,--output-dir,--output_dir", options->output,
             "with --split-nodes: folder to write; of data sets of type code: folder for all_data.jsonl");
  auto input = std::make_shared<std::string>();
  verb->add_option("--input", *input, "the data set: datasets=FILE");
  add_force(verb, options->force, "replace files in that folder");
  verb->callback([=, &action] {
    action = [=] {
      std::vector<std::string> overrides = verb->remaining();
      if (!input->empty()) overrides.push_back("datasets=" + Json(*input).dump());
      options->run = request_of(*config, overrides);
      return run_prepare(*options);
    };
  });
}

}  // namespace hone
