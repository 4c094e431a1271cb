#include "app/cli.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <utility>

#include "app/bench/bench_verbs.h"
#include "app/chat/chat.h"
#include "app/convert/convert.h"
#include "app/convert_config/convert_config.h"
#include "app/download/download.h"
#include "app/env/environment.h"
#include "app/estimate/estimate.h"
#include "app/eval/eval.h"
#include "app/generate/generate.h"
#include "app/init/init.h"
#include "app/inspect/inspect.h"
#include "app/key_options.h"
#include "app/launch/launch.h"
#include "app/launched_ranks.h"
#include "app/merge/merge.h"
#include "app/output.h"
#include "app/quickstart/quickstart.h"
#include "app/train/train_verbs.h"
#include "app/verify/verify.h"
#include "config/resolve.h"
#include "config/run_options.h"
#include "config/schema_docs.h"
#include "config/schema_summary.h"
#include "config/tools/tool.h"
#include "core/base/error.h"
#include "core/stream/process_kernels.h"
#include "core/text/json.h"
#include "dist/control/launch_environment.h"
#include "kernels/cuda/kernel_limit.h"

namespace hone {

CLI::App* add_verb(CLI::App& parent, const char* name, const char* what, const char* examples) {
  CLI::App* verb = parent.add_subcommand(name, what);
  verb->footer(std::string("Examples:\n") + examples);
  verb->allow_extras();
  return verb;
}

void add_threads(CLI::App* verb, int& threads) {
  verb->add_option("--threads", threads, "0: all cores")->capture_default_str();
}

constexpr const char* kOutputType = "OUTPUT";

CLI::Option* add_output(CLI::App* verb, const std::string& name, std::string& path, const std::string& what) {
  return verb->add_option(name, path, what)->type_name(kOutputType);
}

bool is_output(const CLI::Option& option) { return option.get_type_name() == kOutputType; }

void add_force(CLI::App* verb, bool& force, const std::string& what) { verb->add_flag("--force", force, what); }

void add_tier(CLI::App* verb) {
  verb->add_option_function<std::string>(
      "--tier",
      [](const std::string& names) {
        limit_kernels_of_process(cuda::parse_kernel_limit(names, launch_environment().local_rank, "--tier"));
      },
      "for tests: GPU kernels of at most a tier (general, sm80, sm90, sm100) or of a smaller GPU (a100-80gb, rtx-4090 "
      "and others, as estimate --gpu); with commas, one for each rank of a host");
}

void add_json(CLI::App* verb, bool& json) { verb->add_flag("--json", json, "print JSON"); }

namespace {

/// Options of a verb, which must outlive parsing.
template <class Options>
std::shared_ptr<Options> options_of() {
  return std::make_shared<Options>();
}

/// Options of a verb that reads a configuration: CONFIG or --config CONFIG, --log-level, --verbose; other arguments are
/// overrides.
struct ConfigOptions {
  std::string config, log_level;
  bool verbose = false;
};

std::shared_ptr<ConfigOptions> add_config(CLI::App* verb) {
  auto options = options_of<ConfigOptions>();
  verb->add_option("CONFIG,--config", options->config,
                   "YAML or JSON file; then key=value or --key value to change keys");
  verb->add_option("--log-level", options->log_level, "trace, debug, info, warning, error or off");
  verb->add_flag("--verbose", options->verbose, "all that run.log has: --log-level debug");
  return options;
}

/// Whether the first argument is an override, which means that the command line names no file.
bool is_override(const std::string& argument) { return argument.find('=') != std::string::npos; }

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

void add_train(CLI::App& app, const TrainCall& call) {
  CLI::App* verb = add_verb(app, "train", "Fine-tune a model",
                            "  hone train run.yaml\n"
                            "  hone train run.yaml learning_rate=2e-5 --max_steps 100\n"
                            "  hone train run.yaml --dry-run        everything but training: nothing is written\n"
                            "  hone train run.yaml resume=auto      go on where the run stopped");
  verb->footer(verb->get_footer() + usual_keys_text());
  auto options = add_config(verb);
  auto dry_run = options_of<bool>();
  verb->add_flag("--dry-run", *dry_run,
                 "load, show a sample, the memory plan and what a packed base costs, run one step, estimate the time");
  add_tier(verb);
  verb->callback([=] { call(request_of(*options, verb->remaining()), *dry_run); });
}

/// Reads the configuration of a launched hone train, for `ranks` ranks: what is wrong with it is said once, and not by
/// each rank.
void check_launched_training(const std::vector<std::string>& command, int ranks) {
  if (command.empty() || command.front() != "train") return;
  CLI::App app;
  RunRequest request;
  add_train(app, [&](const RunRequest& asked, bool) { request = asked; });
  std::vector<const char*> words = {"hone"};
  for (const std::string& word : command) words.push_back(word.c_str());
  try {
    std::vector<std::string> arguments = arguments_of(app, static_cast<int>(words.size()), words.data());
    std::reverse(arguments.begin(), arguments.end());
    app.parse(std::move(arguments));
  } catch (const CLI::Error&) {  // help, or a mistake that the ranks name
    return;
  }
  load_config(request.config, request.overrides, {ranks});
}

void add_launch(CLI::App& app, Action& action) {
  CLI::App* verb =
      add_verb(app, "launch", "Run a verb on several ranks, here or on other machines, that train together",
               "  hone launch -- train run.yaml\n"
               "  hone launch -n 4 -- train run.yaml\n"
               "  hone launch -n 2 --device cpu -- train run.yaml --max_steps 10\n"
               "  hone launch -n 8 -- train run.yaml resume=auto\n"
               "  hone launch --hosts node1,node2 -n 4 -- train run.yaml\n"
               "  hone launch --slurm --nodes 2 -n 4 --time 48:00:00 -- train run.yaml");
  auto options = options_of<LaunchOptions>();
  verb->add_option("-n,--ranks", options->ranks,
                   "how many, on each host; default: one for each GPU here, 1 on other machines");
  verb->add_option("--device", options->device, "cpu, cuda (a GPU for each), or auto: GPUs if there are enough")
      ->capture_default_str();
  verb->prefix_command();  // the verb to run, and its arguments
  const auto elsewhere = add_launch_elsewhere(verb);
  verb->callback([=, &action] {
    action = [=] {
      options->arguments = verb->remaining();
      options->check = [command = options->arguments](int ranks) { check_launched_training(command, ranks); };
      if (!elsewhere->wanted()) return run_launch(*options);
      return run_launch_elsewhere(*elsewhere, options->ranks, options->device, options->arguments);
    };
  });
}

void add_eval(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "eval", "Loss, perplexity and accuracy of a model on data",
                            "  hone eval run.yaml\n"
                            "  hone eval run.yaml --checkpoint out/run1\n"
                            "  hone eval run.yaml --adapter out/run1 --base --prompts questions.txt\n"
                            "  hone eval run.yaml eval_datasets=test.jsonl val_split=0 --json");
  auto options = add_config(verb);
  auto request = options_of<EvalRequest>();
  verb->add_option("--checkpoint,--adapter,--adapter-path", request->checkpoint,
                   "evaluate this folder, a model or an adapter, instead of the configuration's");
  verb->add_flag("--base", request->base, "compare with the model before training");
  verb->add_option("--max-samples", request->max_samples, "only the first samples of the data");
  verb->add_option("--prompts", request->prompts, "file of prompts to answer: .txt, one a line, or .jsonl");
  add_output(verb, "--output", request->output,
             "JSON file to write; default with --base: evaluation_results.json in the checkpoint's folder");
  add_force(verb, request->force, "replace the output file, even if it is not an earlier evaluation");
  add_json(verb, request->json);
  add_tier(verb);
  verb->callback([=, &action] {
    action = [=] {
      request->run = request_of(*options, verb->remaining());
      return run_eval(*request);
    };
  });
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
  auto options = options_of<PrepareOptions>();
  auto config = add_config(verb);
  verb->add_option("--debug", options->debug, "show so many samples whole")->check(CLI::PositiveNumber);
  verb->add_option("--split-nodes,--num-nodes,--num_nodes", options->split_nodes,
                   "shuffle the rows and write one file for each node");
  add_output(verb, "--output,--output-dir,--output_dir", options->output,
             "with --split-nodes: folder to write; of data sets of type code: folder for all_data.jsonl");
  auto input = options_of<std::string>();
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

void add_estimate(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "estimate", "Memory a run needs, from headers alone",
                            "  hone estimate run.yaml\n"
                            "  hone estimate ./Qwen3-30B-A3B --method lora max_length=8192\n"
                            "  hone estimate qwen3-30b-a3b device=cuda --memory 80GB    before the download\n"
                            "  hone estimate run.yaml --gpu rtx-4090              a GPU that need not be there\n"
                            "  hone estimate run.yaml --ranks 8 zero_stage=3\n"
                            "  hone estimate run.yaml --ranks 16 fsdp=hybrid_shard\n"
                            "  hone estimate run.yaml per_device_train_batch_size=4 --json");
  auto options = options_of<EstimateOptions>();
  auto method = options_of<std::string>();
  verb->add_option("CONFIG_OR_MODEL,--config", options->target,
                   "configuration, model folder, config.json, or a name of bench step; then key=value")
      ->required();
  verb->add_option("--method", *method, "full, lora or qlora (a 4-bit base beside the adapters)");
  verb->add_option("--ranks", options->ranks, "how many train together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option(
          "--ranks-of-host", options->ranks_of_host,
          "how many of them are on each host, for dp_shard_size: host and experts_device: cpu; 0: 8, or all if there "
          "are fewer")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--memory", options->memory, "memory of the device, such as 80GB; default: its free memory")
      ->transform(CLI::AsSizeValue(true));
  verb->add_option("--host-memory", options->host_memory,
                   "host memory for cpu_offload, of each rank; default: this machine's, for its own GPU")
      ->transform(CLI::AsSizeValue(true));
  verb->add_option("--gpu", options->gpu, "a GPU that need not be there: a100-80gb, rtx-4090, h200, …");
  add_json(verb, options->json);
  verb->callback([=, &action] {
    action = [=] {
      options->overrides = verb->remaining();
      if (*method == "qlora") options->overrides.emplace_back("base_weight_dtype=nf4");
      if (!method->empty()) options->overrides.push_back("finetuning_type=" + (*method == "qlora" ? "lora" : *method));
      return run_estimate(*options);
    };
  });
}

void add_init(CLI::App& app, Action& action) {
  CLI::App* verb =
      add_verb(app, "init", "Write a commented configuration for a model, or a new model with random weights",
               "  hone init ./Qwen3-30B-A3B --data data/chat.jsonl\n"
               "  hone init Qwen/Qwen3-8B --data openai/gsm8k --data-name main\n"
               "  hone init ./Qwen3-8B --method full --output full.yaml\n"
               "  hone init ./gpt-oss-20b --method qlora --data data/chat.jsonl\n"
               "  hone init --new-model config.json ./tiny --tokenizer ./Qwen3-8B --seed 7");
  auto options = options_of<InitOptions>();
  auto create = options_of<NewModelOptions>();
  auto folders = options_of<std::vector<std::string>>();
  verb->add_option("MODEL", options->model, "model folder; with --new-model the folder to write");
  verb->add_option("--method", options->method, "lora, qlora (a 4-bit base beside the adapters) or full")
      ->capture_default_str();
  verb->add_option("--preset", options->preset, "quick, full, memory, conservative, balanced or aggressive");
  verb->add_option("--data", options->data,
                   "data set: a file (JSONL, JSON, CSV, TSV, Parquet, text), a folder of them, or ORG/NAME of the hub");
  verb->add_option("--data-name", options->data_name, "configuration of a data set of the hub");
  verb->add_option("--data-split", options->data_split, "its split; default: train");
  add_output(verb, "--output", options->output, "file to write, - for standard output")->capture_default_str();
  verb->add_option("--new-model", create->config, "config.json of a model to make: MODEL is then where");
  verb->add_option("--tokenizer", create->tokenizer, "with --new-model: folder whose tokenizer files are copied");
  verb->add_option("--dtype", create->dtype, "with --new-model: float32 or bfloat16; default: what the config says");
  verb->add_option("--seed", create->seed, "with --new-model: seed of the weights")->capture_default_str();
  add_threads(verb, create->threads);
  add_force(verb, options->force);
  verb->callback([=, &action] {
    action = [=] {
      if (options->model.empty()) {
        throw UserError("no model folder is given", "MODEL", "hone init --help has examples");
      }
      if (create->config.empty()) return run_init(*options);
      create->output = options->model;
      create->force = options->force;
      return run_new_model(*create);
    };
  });
}

void add_convert_config(CLI::App& app, Action& action) {
  CLI::App* verb =
      add_verb(app, "convert-config", "A configuration of another tool as one of Hone",
               "  hone convert-config axolotl.yml\n"
               "  hone convert-config train.sh --output run.yaml --devices 8\n"
               "  hone convert-config --from trl --model_name_or_path ./Qwen3-8B --dataset_name chat.jsonl\n"
               "  hone convert-config finetune.py              TRL's or Unsloth's calls in a Python script\n"
               "  hone convert-config ds_config.json --output -");
  verb->footer(verb->get_footer() + fmt::format("\nTools: {} (docs/migration.md).", tool_names()));
  auto options = options_of<ConvertOptions>();
  verb->add_option("CONFIG", options->input, "YAML, JSON, shell or Python script; then the tool's own flags");
  verb->add_option("--from", options->from, "the tool; auto goes by the keys")->capture_default_str();
  add_output(verb, "--output", options->output, "file to write, - for standard output")->capture_default_str();
  verb->add_option("--devices", options->devices, "GPUs the tool ran on: accumulation makes up for them");
  verb->add_flag("--accept-changes", options->accept_changes, "leave out what would change the result, and write");
  add_force(verb, options->force);
  verb->callback([=, &action] {
    action = [=] {
      options->flags = verb->remaining();
      if (is_override(options->input)) {
        options->flags.insert(options->flags.begin(), options->input);
        options->input.clear();
      }
      return run_convert_config(*options);
    };
  });
}

void add_download(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "download", "Bring a model or a data set of the Hugging Face hub here",
                            "  hone download Qwen/Qwen3-30B-A3B\n"
                            "  hone download Qwen/Qwen3-0.6B --revision v1.0\n"
                            "  hone download openai/gsm8k --repo-type dataset\n"
                            "  hone download org/model --include '*.json' --exclude 'vocab*'\n"
                            "Other verbs take the name and download what is not here: model_name_or_path: "
                            "Qwen/Qwen3-0.6B.\n"
                            "HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are those of "
                            "huggingface_hub, and the cache is the same (docs/hub.md).");
  auto options = options_of<DownloadOptions>();
  verb->add_option("ID", options->id, "ORG/NAME, or ORG/NAME@REVISION")->required();
  verb->add_option("--revision", options->revision, "a branch, a tag or a commit; default: main");
  verb->add_option("--repo-type", options->repo_type, "model or dataset")->capture_default_str();
  verb->add_option("--include", options->include,
                   "only files that match this pattern, such as '*.json', instead of weights, tokenizer, templates and "
                   "configurations; several times for several");
  verb->add_option("--exclude", options->exclude, "leave out files that match this pattern");
  verb->add_flag("--yes", options->yes, "also a model of more than 10 GB that no setting makes fit on this machine");
  add_json(verb, options->json);
  verb->callback([=, &action] { action = [=] { return run_download(*options); }; });
}

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "inspect", "What a model or adapter folder holds",
                            "  hone inspect ./Qwen3-30B-A3B\n"
                            "  hone inspect out/run1 --tensors");
  auto options = options_of<InspectOptions>();
  verb->add_option("MODEL", options->path,
                   "model folder, config.json, name of the Hugging Face hub, a name of bench step, or adapter "
                   "folder")
      ->required();
  verb->add_flag("--tensors", options->tensors, "list every tensor of the files");
  verb->callback([=, &action] { action = [=] { return run_inspect(*options); }; });
}

void add_base_rounding(CLI::App* verb, std::string& dtype, std::vector<std::string>& keep) {
  verb->add_option("--base-weight-dtype", dtype,
                   "round the base as a run with that key did before the adapter is added: nf4, int4, …; default: the "
                   "weights of the files");
  verb->add_option("--base-weight-keep", keep, "patterns of weights that are not rounded")->delimiter(',');
}

void add_merge(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "merge", "Merge an adapter into its base model, with a check of the result",
                            "  hone merge --model ./Qwen3-30B-A3B --adapter out/run1 --output merged");
  auto options = options_of<MergeOptions>();
  verb->add_option("--model", options->model, "folder of the base model")->required();
  verb->add_option("--adapter", options->adapter, "folder of the adapter")->required();
  add_output(verb, "--output", options->output, "folder to write")->required();
  verb->add_option("--dtype", options->dtype, "dtype of the written weights: float32 or bfloat16; default: the base's");
  add_base_rounding(verb, options->base_weight_dtype, options->base_weight_keep);
  verb->add_flag("--compare-logits", options->compare_logits,
                 "also compare the logits of base + adapter and of the result on a few prompts: takes memory for the "
                 "model in float32");
  verb->add_option("--tolerance", options->tolerance,
                   "relative drift of float32 logits that is allowed; asks for --compare-logits");
  add_threads(verb, options->threads);
  add_force(verb, options->force, "replace the model in the output folder");
  verb->callback([=, &action] { action = [=] { return run_merge(*options); }; });
}

void add_export(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "export", "A trained model as one folder: adapters merged, in files of a chosen size",
                            "  hone export out/run1 released\n"
                            "  hone export out/full1/checkpoint-500 released --dtype bfloat16 --max-shard-size 2GB\n"
                            "  hone export out/run1 released --weights fp8");
  auto options = options_of<ExportOptions>();
  verb->add_option("INPUT", options->input, "folder of a model or an adapter")->required();
  add_output(verb, "OUTPUT", options->output, "folder to write")->required();
  verb->add_option("--model", options->model, "base of an adapter; default: the one that it names");
  verb->add_option("--format", options->format, "safetensors")->capture_default_str();
  verb->add_option("--dtype", options->dtype, "dtype of the weights: float32 or bfloat16; default: each as it is");
  verb->add_option("--weights", options->weights,
                   "fp8 or mxfp4: round matrices of layers to FP8 blocks, or experts of gpt-oss to MXFP4");
  add_base_rounding(verb, options->base_weight_dtype, options->base_weight_keep);
  verb->add_option("--max-shard-size", options->max_shard_size, "largest file, such as 5GB")
      ->transform(CLI::AsSizeValue(true));
  add_threads(verb, options->threads);
  add_force(verb, options->force, "replace the model in the output folder");
  verb->callback([=, &action] { action = [=] { return run_export(*options); }; });
}

void add_convert(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "convert", "Adapters in other layouts; sharded checkpoints as Hugging Face folders",
                            "  hone convert out/run1 adapter --to sglang\n"
                            "  hone convert kt_adapter adapter --to split --model ./Qwen3-30B-A3B\n"
                            "  hone convert out/checkpoint-500 converted --model ./Mixtral-8x7B-v0.1\n"
                            "  hone convert out/checkpoint-500/pytorch_model_fsdp_0 adapter --model ./Qwen3-30B-A3B "
                            "--lora-alpha 32");
  auto options = options_of<WeightConversionOptions>();
  verb->add_option("INPUT", options->input, "folder of an adapter, or of pytorch_model_fsdp_0, or that folder itself")
      ->required();
  add_output(verb, "OUTPUT", options->output, "folder to write")->required();
  verb->add_option("--model", options->model,
                   "the base model: its names and layout are written; default: what the adapter names");
  verb->add_option("--to", options->to, "layout of an adapter: split, target_parameters, kt or sglang");
  verb->add_option("--dtype", options->dtype,
                   "dtype of a model's weights: float32 or bfloat16; default: the checkpoint's");
  verb->add_option("--lora-alpha", options->lora_alpha, "alpha of an adapter whose adapter_config.json is lost");
  verb->add_option("--max-shard-size", options->max_shard_size, "largest file of a model, such as 5GB")
      ->transform(CLI::AsSizeValue(true));
  add_force(verb, options->force, "replace the model in the output folder");
  verb->callback([=, &action] { action = [=] { return run_convert(*options); }; });
}

/// Adds options for the model, its adapter and template, and sampling. `options` must outlive the verb.
void add_inference(CLI::App* verb, InferenceOptions& options) {
  verb->add_option("--model", options.model, "folder of a model or an adapter, or ORG/NAME of the Hugging Face hub")
      ->required();
  verb->add_option("--adapter", options.adapter, "folder of an adapter");
  verb->add_option("--chat-template", options.chat_template,
                   "Template to use instead of the model's: a Jinja file, or a name that is built in");
  verb->add_option("--chat-template-kwargs", options.chat_template_kwargs, "JSON object of variables for the template");
  verb->add_option("--enable-thinking", options.enable_thinking, "true or false: that variable of the template");
  verb->add_option("--split-special-tokens", options.split_special_tokens,
                   "true: special tokens in the text of messages are text; left out: as the training run had it");
  SamplingOverrides& sampling = options.sampling;
  verb->add_option("--max-new-tokens", sampling.max_new_tokens, "default: the model's, else 512");
  verb->add_option("--temperature", sampling.temperature, "0: always the most probable token");
  verb->add_option("--top-k", sampling.top_k, "only the k most probable tokens; 0: all");
  verb->add_option("--top-p", sampling.top_p, "only the most probable tokens that make up this share");
  verb->add_option("--repetition-penalty", sampling.repetition_penalty, "above 1: repeats less");
  verb->add_option("--do-sample", sampling.do_sample, "draw tokens at random; default: if one of the above says how");
  verb->add_option("--seed", sampling.seed, "seed of random sampling");
  add_keys(verb, options.keys, usual_in_inference(),
           {{"device"},
            {"dtype"},
            {"base_weight_dtype"},
            {"base_weight_keep"},
            {"expert_weight_dtype"},
            {"experts_device"},
            {"cpu_expert_layers"},
            {"cpu_offload"},
            {"offload_expert_layers"},
            {"stage3_param_persistence_threshold", "--param-persistence-threshold"},
            {"zero_stage"},
            {"expert_parallel_size"}});
  add_tier(verb);
  add_threads(verb, options.threads);
}

}  // namespace

InferenceOptions parse_inference(std::vector<std::string> words) {
  CLI::App app("", "generate");
  InferenceOptions options;
  add_inference(&app, options);
  words.erase(words.begin());
  std::reverse(words.begin(), words.end());  // CLI11's order
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    throw UserError(error.what(), "settings", "hone generate --help lists the options of a model and of sampling");
  }
  return options;
}

namespace {

void add_chat(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "chat", "A conversation with a model, with or without an adapter",
                            "  hone chat --model out/run1\n"
                            "  hone chat --model ./Qwen3-30B-A3B --adapter out/run1 --system \"Be brief.\"\n"
                            "  hone chat --model ./Qwen3-30B-A3B --enable-thinking false --temperature 0.7\n"
                            "  printf 'Hello\\nAnd in French?\\n' | hone chat --model out/run1");
  auto options = options_of<ChatOptions>();
  add_inference(verb, *options);
  verb->add_option("--system", options->system, "system message; /system changes it");
  verb->add_option("--max-length", options->max_length,
                   "tokens of the whole conversation; default: the model's context, at most 8192");
  verb->callback([=, &action] { action = [=] { return run_chat(*options); }; });
}

void add_generate(CLI::App& app, Action& action, const std::vector<std::string>& arguments) {
  CLI::App* verb =
      add_verb(app, "generate", "Answers of a model, with or without an adapter",
               "  hone generate --model out/run1 --prompt \"What is a mixture of experts?\"\n"
               "  hone generate --model ./Qwen3-30B-A3B --adapter out/run1 --prompt Hello --temperature 0.7\n"
               "  hone generate --model out/run1 --input questions.jsonl --output answers.jsonl\n"
               "  hone generate --ranks 4 --model ./Qwen3-235B-A22B --input questions.jsonl --output answers.jsonl\n"
               "  hone generate --model ./Qwen3-235B-A22B --experts-device cpu --prompt Hello");
  auto options = options_of<GenerateOptions>();
  auto ranks = options_of<int>();
  *ranks = 1;
  add_inference(verb, *options);
  verb->add_option("--prompt", options->prompt, "the user's message; with --raw the start of a text");
  verb->add_option("--input", options->input,
                   "data as training reads them (docs/data.md), answers may be missing; .txt: a prompt a line");
  verb->add_option("--column-mapping", options->column_mapping,
                   "with --input: columns with other names, such as '{\"prompt\": \"customer\"}'");
  add_output(verb, "--output", options->output, "with --input: JSONL to write, - for standard output")
      ->capture_default_str();
  verb->add_option("--system", options->system, "system message of chats that have none");
  verb->add_flag("--raw", options->raw, "continue prompts as they are, without chat template");
  verb->add_option("--batch-size", options->batch_size, "sequences that run at once, on each rank")
      ->capture_default_str();
  verb->add_option("--ranks", *ranks, "number of ranks that share the prompts; as hone launch -n")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  add_force(verb, options->force, "replace the output file");
  verb->callback([=, &action] {
    action = [=] {
      if (*ranks > 1 && !is_launched()) {
        const ResolvedConfig config =
            resolve_keys(usual_in_inference(), options->keys, {*ranks, *ranks}, RuleUse::kAlways);
        return run_launch({.ranks = *ranks, .device = config.run.machine.device, .arguments = arguments});
      }
      LaunchedRanks launched;
      if (*ranks > 1 && launched.size() != *ranks) {
        throw UserError(fmt::format("{} ranks have been started", launched.size()), "--ranks",
                        "leave it out: the launcher's number counts");
      }
      return launched.run([&] { return run_generate(*options, launched.for_trainer()); });
    };
  });
}

void add_verify(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "verify", "Replay a reference case and hold every number against its bound",
                            "  hone verify cases/qwen3_moe\n"
                            "  hone verify cases/qwen3_moe --device cuda\n"
                            "  hone verify cases/qwen3_moe --dtype bfloat16 --json\n"
                            "  hone verify cases/qwen3_moe --ranks 4 --zero-stage 3\n"
                            "  hone verify cases/qwen3_moe --ranks 4 --zero-stage 3 --shard-size 2\n"
                            "  hone verify cases/qwen3_moe --ranks 4 --zero-stage 1 --expert-parallel-size 2\n"
                            "  hone verify cases/qwen3_moe --device cuda --cpu-offload optimizer,params,activations\n"
                            "  hone verify cases/qwen3_moe --device cuda --experts-device cpu\n"
                            "  hone launch -n 2 -- verify cases/qwen3_moe --device cuda --zero-stage 3");
  auto options = options_of<VerifyOptions>();
  verb->add_option("CASE_DIR", options->case_directory, "folder of the case")->required();
  verb->add_option("--ranks", options->ranks, "the case's runs alone, by so many ranks that train together")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  add_keys(verb, options->keys, usual_in_verify(),
           {{"device"},
            {"dtype"},
            {"cpu_offload"},
            {"experts_device"},
            {"cpu_expert_layers"},
            {"zero_stage"},
            {"dp_shard_size", "--shard-size"},
            {"expert_parallel_size"}});
  add_tier(verb);
  add_threads(verb, options->threads);
  add_json(verb, options->json);
  verb->callback([=, &action] { action = [=] { return run_verify(*options, launched_ranks()); }; });
}

void add_about(CLI::App& app, Action& action) {
  CLI::App* schema = add_verb(app, "schema", "Every configuration key, as JSON Schema",
                              "  hone schema > hone.schema.json\n"
                              "  hone schema --markdown");
  auto markdown = options_of<bool>();
  auto summary = options_of<bool>();
  schema->add_flag("--markdown", *markdown, "as a document instead");
  schema->add_flag("--summary", *summary, "methods, machines and what is not in this version, as rows of a table")
      ->excludes("--markdown");
  schema->callback([=, &action] {
    action = [=] {
      print_text(*summary ? schema_summary() : *markdown ? schema_markdown() : schema_json().dump(2) + "\n");
      return 0;
    };
  });
  CLI::App* models =
      add_verb(app, "models", "The architectures this program trains", "  hone models\n  hone models --json");
  auto models_document = options_of<bool>();
  auto models_data = options_of<bool>();
  models->add_flag("--markdown", *models_document, "as a Markdown table");
  add_json(models, *models_data);
  models->callback([=, &action] { action = [=] { return run_models(*models_document, *models_data); }; });
  CLI::App* env = add_verb(app, "env", "This program and this machine", "  hone env\n  hone env --json");
  auto json = options_of<bool>();
  add_json(env, *json);
  add_tier(env);
  env->callback([=, &action] { action = [=] { return run_env(*json); }; });
  auto quickstart = options_of<QuickstartOptions>();
  CLI::App* show = add_verb(app, "quickstart", "Fine-tune a small model in two acts, in minutes, without a download",
                            "  hone quickstart\n  hone quickstart --output runs/quickstart --seed 7");
  add_output(show, "--output", quickstart->output, "folder for data, model and runs")->capture_default_str();
  add_force(show, quickstart->force, "replace files of an earlier quickstart that were changed; others stay");
  show->add_option("--device", quickstart->device, "cpu, cuda, cuda:N or auto")->capture_default_str();
  show->add_option("--seed", quickstart->seed, "seed of data, model and training")->capture_default_str();
  show->add_option("--english-steps", quickstart->budget.english_steps, "optimizer steps of act 1")
      ->capture_default_str();
  show->add_option("--german-steps", quickstart->budget.german_steps, "optimizer steps of act 2")
      ->capture_default_str();
  show->callback([=, &action] { action = [=] { return run_quickstart(*quickstart); }; });
  CLI::App* version = add_verb(app, "version", "The version of this program", "  hone version");
  version->callback([&action] { action = run_version; });
}

}  // namespace

void add_verbs(CLI::App& app, Action& action, const std::vector<std::string>& arguments) {
  add_init(app, action);
  add_convert_config(app, action);
  add_download(app, action);
  add_inspect(app, action);
  add_estimate(app, action);
  add_validate(app, action);
  add_prepare(app, action);
  add_train(app, [&action](const RunRequest& request, bool dry_run) {
    action = [=] { return run_train(request, dry_run); };
  });
  add_launch(app, action);
  add_eval(app, action);
  add_generate(app, action, arguments);
  add_chat(app, action);
  add_merge(app, action);
  add_export(app, action);
  add_convert(app, action);
  add_verify(app, action);
  add_bench(app, action);
  add_about(app, action);
}

bool takes_overrides(const std::string& verb) {
  return verb == "train" || verb == "eval" || verb == "validate" || verb == "estimate" || verb == "prepare" ||
         verb == "convert-config";
}

bool takes_keys(const std::string& verb) {
  return verb == "generate" || verb == "chat" || verb == "verify" || verb == "step";
}

}  // namespace hone
