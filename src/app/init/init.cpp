#include "app/init/init.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "app/model_source.h"
#include "app/output.h"
#include "config/presets.h"
#include "config/schema.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "data/readers/hub_dataset.h"
#include "models/registry.h"
#include "params/random_weights.h"
#include "report/humanise.h"
#include "session/device_facts.h"
#include "session/loaded_model.h"
#include "session/model_path.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/model_folder.h"
#include "weights/promised_layers.h"
#include "weights/quantization.h"

namespace hone {
namespace {

constexpr const char* kExampleData = "data/chat.jsonl";

struct Line {
  std::string text;     ///< "key: value", or "" for an empty line
  std::string comment;  ///< after the text, or on its own line
};

/// A path as YAML text, quoted if necessary.
std::string yaml_path(const std::string& path) {
  const bool plain = !path.empty() && std::all_of(path.begin(), path.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '/' || c == '.' || c == '_' || c == '-';
  });
  return plain ? path : Json(path).dump();
}

/// The lines as text, with aligned comments.
std::string laid_out(const std::vector<Line>& lines) {
  constexpr size_t kColumn = 40;
  std::string text;
  for (const Line& line : lines) {
    std::string row = line.text;
    if (!line.comment.empty()) {
      if (!row.empty()) row.resize(std::max(row.size() + 2, kColumn), ' ');
      row += "# " + line.comment;
    }
    text += row + "\n";
  }
  return text;
}

void append(std::vector<Line>& lines, std::vector<Line> more) {
  lines.insert(lines.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::vector<Line> method_lines(const InitOptions& options, bool sparse) {
  if (options.method == "full") {
    std::vector<Line> lines = {{"finetuning_type: full", "all weights; lora trains small adapters beside them"}};
    if (sparse)
      lines.push_back({"freeze_router: false", "the routers learn too, balanced by the model's auxiliary loss"});
    return lines;
  }
  std::vector<Line> lines = {
      {"finetuning_type: lora", "small adapters beside frozen weights; full trains all of them"}};
  if (options.method == "qlora") {
    lines.push_back(
        options.has_mxfp4
            ? Line{"base_weight_dtype: auto", "frozen weights keep the 4 bits that they have in the files"}
            : Line{"base_weight_dtype: nf4", "QLoRA: frozen weights of layers in 4 bits (docs/precision.md)"});
  }
  append(lines, {
                    {"lora_r: 16", "rank: higher learns more and takes more memory"},
                    {"lora_alpha: 32", "the adapters count alpha / r = 2"},
                    {sparse ? "lora_target_modules: [attention, all-experts]" : "lora_target_modules: [all-linear]",
                     "`hone inspect` lists what else can be named"},
                });
  if (sparse) lines.push_back({"freeze_router: true", "tokens keep going to the experts the model chose"});
  return lines;
}

constexpr const char* kAccumulation = "gradient_accumulation_steps";

/// The sequences of a step at most: those that the preset accumulates, if there is one.
int64_t most_sequences(const InitOptions& options) {
  constexpr int64_t kUsual = 16;
  if (options.preset.empty()) return kUsual;
  for (const PresetValue& value : preset_called(options.preset).values) {
    if (value.key == kAccumulation) return (options.method == "full" ? value.full : value.lora).get<int64_t>();
  }
  return kUsual;
}

/// Replaces the lines of keys that the preset sets by the preset's line. `decided`: keys of presets that the data
/// decide.
void put_preset(std::vector<Line>& lines, const std::string& name, const std::vector<std::string>& decided) {
  const Preset& preset = preset_called(name);
  std::vector<PresetValue> values = preset.values;
  std::erase_if(values,
                [&](const PresetValue& value) { return std::count(decided.begin(), decided.end(), value.key); });
  const auto is_set = [&](const Line& line) {
    const std::string key = line.text.substr(0, line.text.find(':'));
    const auto sets = [&](const PresetValue& value) {
      if (value.key == key || std::find(value.unless.begin(), value.unless.end(), key) != value.unless.end())
        return true;
      for (const auto& family : key_families()) {
        if (std::count(family.begin(), family.end(), key) && std::count(family.begin(), family.end(), value.key))
          return true;
      }
      return false;
    };
    return std::any_of(values.begin(), values.end(), sets);
  };
  std::erase_if(lines, is_set);
  std::string sets;
  for (const PresetValue& value : values) sets += (sets.empty() ? "sets " : ", ") + value.key;
  const auto place =
      std::find_if(lines.begin(), lines.end(), [](const Line& line) { return line.text == "datasets:"; });
  lines.insert(place, {{"preset: " + name, "to " + preset.purpose},
                       {"", sets},
                       {"", "state one of them to have another value"},
                       {"", ""}});
}

/// The lines for a template's switch for thinking.
std::vector<Line> thinking_lines(const DataFacts& data) {
  if (data.thinking_switch.empty()) return {};
  const std::string off = fmt::format("chat_template_kwargs: {{{}: false}}", data.thinking_switch);
  if (data.chats == 0) return {{"", off + "   if no answer of your data has thoughts"}};
  if (data.with_thoughts == 0) return {{off, "no answer of the data has thoughts: asked so, none are written"}};
  if (data.with_thoughts == data.chats) return {};
  return {{"", fmt::format("{} of {} rows have thoughts: see {} in docs/data.md", data.with_thoughts, data.chats,
                           data.thinking_switch)}};
}

/// The lines of max_length and overlength.
std::vector<Line> length_lines(const BatchSizes& sizes, const DataFacts& data, int64_t model_length) {
  const std::string allowed = fmt::format("the model allows {}", with_commas(model_length));
  const std::string measured =
      data.lengths.rows == 0 ? "tokens a sample may have; " + allowed
                             : fmt::format("99 % of the samples: up to {} tokens, the longest {}; {}",
                                           with_commas(data.lengths.p99), with_commas(data.lengths.longest), allowed);
  return {{fmt::format("max_length: {}", sizes.max_length), measured},
          data.plain_text
              ? Line{"overlength: split", "longer texts become several samples; or drop, truncate_right, …"}
              : Line{"overlength: drop", "longer ones: drop | truncate_left | truncate_right | split | error"}};
}

std::string steps_text(const BatchSizes& sizes) {
  if (sizes.steps_per_epoch == 0) return "sequences a step; how often gradients accumulate follows";
  return fmt::format("sequences a step, about {} step{} an epoch; how often gradients accumulate follows",
                     with_commas(sizes.steps_per_epoch), sizes.steps_per_epoch == 1 ? "" : "s");
}

}  // namespace

std::string initial_yaml(const InitOptions& options, const DecoderConfig& model, const DataFacts& data) {
  const bool sparse = model.num_moe_layers() > 0, full = options.method == "full";
  const int64_t model_length = model.rope.max_position_embeddings;
  const bool one_row = data.rows == 1;
  const BatchSizes sizes = batch_sizes(data, model_length, most_sequences(options));
  std::vector<Line> lines = {
      {"", "What `hone train` does with this file. Every key: docs/config.md, or `hone schema`."},
      {"", fmt::format("Try it first: `hone train {0} --dry-run`. Change a key for one run: `hone train {0} seed=7`.",
                       options.output == "-" ? "run.yaml" : options.output)},
      {"", ""},
      {"model_name_or_path: " + yaml_path(options.model), options.needs_download ? "THE FOLDER OF ITS DOWNLOAD" : ""}};
  append(lines, method_lines(options, sparse));
  append(lines, {{"", ""},
                 {"datasets:", ""},
                 {"  - path: " + yaml_path(options.data.empty() ? kExampleData : options.data),
                  options.data.empty()         ? "YOUR DATA: a file or a folder of JSONL, JSON, CSV, text"
                  : options.data_split.empty() ? "or a folder of files"
                                               : ""}});
  if (!options.data_name.empty()) lines.push_back({"    name: " + yaml_path(options.data_name), ""});
  if (!options.data_split.empty()) lines.push_back({"    split: " + yaml_path(options.data_split), ""});
  append(lines, {{"    type: auto", "by the columns; or messages, alpaca, prompt_response, text, … (docs/data.md)"},
                 one_row ? Line{"val_split: 0", "the data are one row, of which none can be held back"}
                         : Line{"val_split: 0.02", "share of the samples that is only evaluated on"}});
  append(lines, length_lines(sizes, data, model_length));
  append(lines, {{"packing: true", "short samples share a batch; they do not see each other"},
                 {"train_on: assistant", "what is learnt: assistant | last | all | completion"}});
  append(lines, thinking_lines(data));
  append(lines,
         {{"", ""},
          {"num_train_epochs: 3", "or max_steps: 1000"},
          {fmt::format("per_device_train_batch_size: {}", sizes.per_device),
           "sequences of max_length at once: memory grows with it"},
          {fmt::format("global_batch_size: {}", sizes.global), steps_text(sizes)},
          {full ? "learning_rate: 1.0e-5" : "learning_rate: 1.0e-4", ""},
          {"lr_scheduler_type: cosine", "or linear, constant, constant_with_warmup"},
          {"min_lr_ratio: 0.1", "falls to this share of learning_rate"},
          {"warmup_ratio: 0.03", "share of the steps in which it rises"},
          {"optim: adamw", ""},
          {"weight_decay: 0.0", ""},
          {"max_grad_norm: 1.0", "longer gradients are cut to this norm; 0: never"},
          {"dtype: bfloat16", "weights and activations; sums and the optimizer are float32"},
          {"gradient_checkpointing: auto", "computes activations twice when memory is short"},
          {"seed: 42", ""},
          {"", ""},
          {"output_dir: out/run1", "model, checkpoints, metrics.jsonl, run.log"},
          {"save_total_limit: 3", "checkpoints kept, one an epoch (save_steps: 200 for more); best and last always"},
          one_row ? Line{"load_best_model_at_end: false", "true: the best by eval_loss, with data to evaluate on"}
                  : Line{"load_best_model_at_end: true", "best by eval_loss, evaluated once an epoch (eval_steps)"},
          {"logging_steps: 1", ""},
          {"report_to: [jsonl, tensorboard]", ""}});
  std::vector<std::string> decided;
  if (sizes.steps_per_epoch > 0) decided.emplace_back(kAccumulation);
  if (one_row) decided.insert(decided.end(), {"val_split", "load_best_model_at_end"});
  if (!options.preset.empty()) put_preset(lines, options.preset, decided);
  return laid_out(lines);
}

namespace {

/// The data set of --data, and the split of one of the hub. Downloads that; UserError if there is none.
DatasetEntry data_of(InitOptions& options) {
  const std::string& path = options.data;
  const bool from_hub = is_hub_dataset(path);
  if (!path.empty() && !from_hub && !std::filesystem::exists(path)) {
    throw UserError("the data set does not exist", path,
                    "give a file of rows (JSONL, JSON, CSV, TSV, Parquet, text), a folder of them, or the name of a "
                    "data set of the hub");
  }
  if (from_hub) {
    if (options.data_split.empty()) options.data_split = "train";
    try {
      (void)files_of_hub_dataset(path, options.data_name, options.data_split);
    } catch (const UserError& error) {
      throw UserError(error.message(), error.where(), error.fix() + " (--data-name and --data-split)");
    }
  }
  return {.path = path, .name = options.data_name, .split = options.data_split};
}

}  // namespace

int run_init(const InitOptions& stated) {
  if (stated.method != "lora" && stated.method != "qlora" && stated.method != "full") {
    throw UserError(fmt::format("'{}' is not a method of this version", stated.method), "--method",
                    "use --method lora, qlora or full");
  }
  if (!stated.preset.empty() && !key_spec("preset").is_choice(stated.preset)) {
    throw UserError(
        fmt::format("'{}' is not a preset.{}", stated.preset, did_you_mean(stated.preset, key_spec("preset").choices)),
        "--preset", expectation(key_spec("preset")));
  }
  InitOptions options = stated;
  const DatasetEntry entry = data_of(options);
  const ModelSource source = find_model(stated.model);
  options.needs_download = !source.known_as.empty() && !is_hub_name(stated.model);
  options.has_mxfp4 =
      source.config.json().value(Json::json_pointer("/quantization_config/quant_method"), Json()) == "mxfp4";
  const auto planned = planned_model(source, DType::kBF16);
  LoadedModel& model = *planned;
  const DecoderConfig& decoder = model.decoder().config();
  const DataFacts data = look_at_data(source.directory, entry, decoder.vocab_size);
  const std::string text = initial_yaml(options, decoder, data);
  if (options.output == "-") {
    print_text(text);
    return 0;
  }
  write_output(options.output, text,
               output_rule({{source.directory, "the model"}, {options.data, "the data set"}}, options.force));
  const GroupCount total = total_of(count_groups(model.store(), decoder.moe));
  print_text(fmt::format("{0}: {1} fine-tuning of {2} ({3} parameters)\n", options.output, options.method,
                         options.model, human_count(static_cast<double>(total.parameters))));
  if (const std::string missing = what_is_missing(source); !missing.empty()) {
    print_text(fmt::format("  {}: {}\n", missing,
                           options.needs_download ? "download the model before you train"
                                                  : "training downloads them, hone download does before"));
  }
  if (!data.problem.empty()) {
    print_text(fmt::format("  {}: max_length, the batch and thinking are not those of the data: {}\n", options.data,
                           data.problem));
  } else if (!data.unmeasured.empty()) {
    print_text(
        fmt::format("  {}: max_length and the batch are not those of the data: {}\n", options.data, data.unmeasured));
  }
  if (data.with_thoughts > 0 && data.with_thoughts < data.chats && !data.thinking_switch.empty()) {
    print_text(fmt::format("  {} of {} rows of the data have thoughts, the others have none: {} is not written\n",
                           data.with_thoughts, data.chats, data.thinking_switch));
  }
  if (options.data.empty()) print_text("  put your data set at 'YOUR DATA', then\n");
  print_text(
      fmt::format("  hone estimate {0}          memory it needs\n  hone train {0} --dry-run   one step, nothing "
                  "written\n  hone train {0}\n",
                  options.output));
  return 0;
}

namespace {

namespace fs = std::filesystem;

HfConfig read_config(const std::string& path) {
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "config.json" : fs::path(path);
  Json json = parse_json(std::string_view(read_whole_file(file, kMostTextBytes, FileSource::kAlsoPipe)));
  if (!json.is_object()) throw UserError("config.json is not a JSON object", file.string());
  return HfConfig(std::move(json), file.string());
}

DType dtype_of(const NewModelOptions& options, const HfConfig& config) {
  const std::string name =
      options.dtype.empty() ? config.string_or("dtype", config.string_or("torch_dtype", "bfloat16")) : options.dtype;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (name_of(dtype) == name) return dtype;
  }
  throw UserError(fmt::format("a new model cannot be written in {}", name), options.dtype.empty() ? config.file() : "",
                  "use --dtype bfloat16 or --dtype float32");
}

/// Throws UserError if the model does not fit in memory: a config may have any sizes.
void require_memory(const ParameterStore& store, const HfConfig& config) {
  double bytes = 0;
  for (const Parameter& p : store.all()) {
    double elements = 1;
    for (int i = 0; i < p.shape().rank(); ++i) elements *= static_cast<double>(p.shape()[i]);
    bytes += elements * static_cast<double>(size_of(p.value().dtype()));
  }
  const auto free = static_cast<double>(available_host_memory());
  if (bytes <= free) return;
  throw UserError(fmt::format("the model has {} of weights, {} are free", human_bytes(bytes), human_bytes(free)),
                  config.file(), "make it smaller, or use a machine with more memory");
}

/// Copies the files of a tokenizer.
void copy_tokenizer(const fs::path& from, const fs::path& to) {
  for (const char* name : {"tokenizer.json", "tiktoken.model", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "chat_template.jinja", "generation_config.json"}) {
    if (fs::exists(from / name)) copy_durably(from / name, to / name);
  }
}

void check_tokenizer(const std::string& directory, int64_t vocab_size) {
  if (directory.empty()) return;
  const int32_t tokens = Tokenizer::load(directory).vocab_size();
  if (tokens <= vocab_size) return;
  throw UserError(fmt::format("the tokenizer has {} tokens, vocab_size is {}", tokens, vocab_size), directory,
                  fmt::format("set vocab_size to {} or more in the config", tokens));
}

}  // namespace

void initialise_weights(ParameterStore& store, double initializer_range, uint64_t seed, ThreadPool& pool) {
  Stream stream(Device{}, pool);
  Arena scratch(Device{}, "initialise");
  scratch.reserve(0);
  initialise_weights(Context(stream, scratch), store, initializer_range, seed);
  stream.synchronize();
}

int run_new_model(const NewModelOptions& options) {
  require_apart(options.output, {{options.config, "the configuration"}, {options.tokenizer, "the tokenizer"}});
  require_free_folder(options.output, options.force);
  const HfConfig config = read_config(options.config);
  const DecoderConfig decoder_config = read_decoder_config(config);
  const DType dtype = dtype_of(options, config);
  check_tokenizer(options.tokenizer, decoder_config.vocab_size);
  ParameterStore store;
  Placement placement;
  const Decoder decoder(decoder_config, store, placement, dtype);
  require_memory(store, config);
  store.allocate(Device{}, true);
  ThreadPool pool(options.threads);
  initialise_weights(store, decoder_config.initializer_range, options.seed, pool);
  Json json = with_true_promises(unquantized_config(config.json()), Checkpoint());
  json.erase("torch_dtype");
  json["dtype"] = std::string(name_of(dtype));
  if (!json.contains("architectures")) json["architectures"] = {config.architecture()};
  write_directory(options.output, [&](const fs::path& temporary, FileChecksums& checksums) {
    if (!options.tokenizer.empty()) copy_tokenizer(options.tokenizer, temporary);
    write_text_file(temporary / "config.json", json.dump(2) + "\n");
    save_parameters(temporary, store, nullptr, nullptr, {.checksums = &checksums});
  });
  const GroupCount total = total_of(count_groups(store, decoder_config.moe));
  print_text(fmt::format("{}: {} with {} parameters ({} active for each token), {}, seed {}\n", options.output,
                         config.architecture(), human_count(static_cast<double>(total.parameters)),
                         human_count(static_cast<double>(total.active)), name_of(dtype), options.seed));
  return 0;
}

}  // namespace hone
