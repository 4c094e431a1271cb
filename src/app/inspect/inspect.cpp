#include "app/inspect/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "app/inference/inference_model.h"
#include "app/model_source.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "data/formats/chat_encoder.h"
#include "params/adapter_kind.h"
#include "params/expert_parts.h"
#include "report/humanise.h"
#include "report/table.h"
#include "report/terminal.h"
#include "report/text_mask.h"
#include "session/loaded_model.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"
#include "weights/adapter_folder.h"
#include "weights/adapter_keys.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// Prints titles and tables of one inspection.
class Page {
 public:
  explicit Page(bool color) : color_(color) {}

  bool color() const { return color_; }
  void title(const std::string& text) { print_text("\n" + styled(one_line(text), Style::kBold, color_) + "\n"); }
  void fact(const std::string& name, const std::string& value) {
    print_text(fmt::format("  {:<20} {}\n", name, one_line(value)));
  }
  void table(const Table& table) { print_text(table.to_string(color_)); }

 private:
  bool color_;
};

std::string context_text(const DecoderConfig& config) {
  const RopeParameters& rope = config.rope;
  std::string text = with_commas(rope.max_position_embeddings) + " positions";
  if (!config.rotates) return text + ", without RoPE";
  text += fmt::format(", theta {:g}", rope.rope_theta);
  if (rope.scaling.factor) text += fmt::format(", scaled by {:g}", *rope.scaling.factor);
  return text;
}

void print_architecture(Page& page, LoadedModel& model, const DecoderConfig& config) {
  const std::string place = model.directory().empty() ? model.config().file() : model.directory().string();
  page.title(fmt::format("{}  ({})", model.config().architecture(), place));
  const int64_t sparse = config.num_moe_layers();
  page.fact("layers", sparse == 0 ? fmt::format("{}", config.layers.size())
                                  : fmt::format("{}, {} of them with experts", config.layers.size(), sparse));
  page.fact("hidden size", with_commas(config.hidden_size));
  for (const ModuleSummary& module : model.decoder().summary()) page.fact(module.name, module.text);
  page.fact("vocabulary",
            with_commas(config.vocab_size) + (config.tie_word_embeddings ? ", the head is the embedding" : ""));
  page.fact("context", context_text(config));
  int64_t window = 0;
  for (const LayerConfig& layer : config.layers) window = std::max(window, layer.sliding_window);
  if (window > 0) page.fact("sliding window", with_commas(window));
  const std::vector<std::string> unread = model.config().unread();
  if (!unread.empty()) page.fact("fields not known", fmt::format("{}", fmt::join(unread, ", ")));
  for (const std::string& difference : model.differences()) page.fact("files differ", difference);
}

void print_groups(Page& page, const ParameterStore& store, const DecoderConfig& config) {
  page.title("parameters");
  std::vector<GroupCount> groups = count_groups(store, config.moe);
  const bool sparse = config.num_moe_layers() > 0;
  std::vector<Table::Column> columns = {{"group"}, {"tensors", Align::kRight}, {"parameters", Align::kRight}};
  if (sparse) columns.push_back({"active per token", Align::kRight});
  Table table(columns);
  const auto add = [&](const GroupCount& group) {
    std::vector<std::string> cells = {group.group, with_commas(group.tensors), with_commas(group.parameters)};
    if (sparse) cells.push_back(with_commas(group.active));
    table.add_row(std::move(cells));
  };
  for (const GroupCount& group : groups) add(group);
  table.add_rule();
  const GroupCount total = total_of(groups);
  add(total);
  page.table(table);
  if (sparse) {
    print_text(fmt::format("  {} parameters, {} active for each token\n",
                           human_count(static_cast<double>(total.parameters)),
                           human_count(static_cast<double>(total.active))));
  }
}

/// "bfloat16" or "bfloat16 (3.1 GB), float32 (12 kB)"
std::string dtypes_text(const std::map<std::string_view, uint64_t>& bytes) {
  std::string text;
  for (const auto& [dtype, size] : bytes) {
    text += (text.empty() ? "" : ", ") + std::string(dtype);
    if (bytes.size() > 1) text += fmt::format(" ({})", human_bytes(size));
  }
  return text;
}

std::string layout_text(const LoadedModel& model) {
  size_t fused = 0, split = 0;
  for (const auto& [parameter, layout] : model.map().layouts) {
    if (is_experts(*parameter)) ++(layout.size() == 1 ? fused : split);
  }
  if (fused + split == 0) return "dense";
  if (fused > 0 && split > 0) return "experts fused in some layers, per expert in others";
  return fused > 0 ? "experts fused, one tensor for all experts of a layer"
                   : "per expert, a tensor for each projection of each expert";
}

void print_files(Page& page, const LoadedModel& model) {
  page.title("files");
  std::map<std::string_view, uint64_t> bytes;
  std::set<fs::path> shards;
  uint64_t total = 0;
  for (const auto& [name, tensor] : model.checkpoint().tensors()) {
    bytes[tensor.entry->dtype_name()] += tensor.entry->bytes;
    total += tensor.entry->bytes;
    shards.insert(tensor.file->path());
  }
  page.fact("weights",
            fmt::format("{} in {} file{}, {} tensors", human_bytes(total), shards.size(), shards.size() == 1 ? "" : "s",
                        with_commas(static_cast<int64_t>(model.checkpoint().tensors().size()))));
  page.fact("dtype", dtypes_text(bytes));
  if (const auto& quantization = model.checkpoint().quantization()) {
    page.fact("quantised", quantization->name() + ", dequantised as it loads; trained weights are saved in bfloat16");
  }
  page.fact("layout", layout_text(model));
  if (!model.map().carried.empty()) {
    page.fact("not trained", fmt::format("{} tensors, kept and written back", model.map().carried.size()));
  }
}

/// Prints a small conversation as tokens, with its supervised part.
void print_chat(Page& page, const Tokenizer& tokenizer) {
  if (!tokenizer.chat_template()) {
    page.fact("chat template",
              "none: state chat_template (chatml, llama3, …) or chat_template_file to train on messages");
    return;
  }
  page.title("chat template, on a sample; marked: what train_on: assistant learns");
  Conversation conversation;
  conversation.messages = Json::array({{{"role", "user"}, {"content", "What is 2 + 2?"}},
                                       {{"role", "assistant"}, {"content", "4."}},
                                       {{"role", "user"}, {"content", "And 3 + 3?"}},
                                       {{"role", "assistant"}, {"content", "6."}}});
  conversation.weights.assign(conversation.messages.size(), 1.0f);
  const Sample sample = ChatEncoder(tokenizer, {}).encode(conversation, "the sample").sample;
  StreamDecoder decoder(tokenizer, false);
  std::vector<MaskPiece> pieces;
  for (size_t i = 0; i < sample.input_ids.size(); ++i) {
    pieces.push_back({decoder.push(sample.input_ids[i]), i > 0 && sample.labels[i] != kIgnoredLabel});
  }
  if (!pieces.empty()) pieces.back().text += decoder.finish();
  print_text(text_mask(pieces, page.color()));
}

void print_tokenizer(Page& page, const LoadedModel& model, int64_t vocab_size) {
  page.title("tokenizer");
  if (!has_tokenizer(model.directory())) {
    page.fact("tokenizer.json", "none: only data of type tokenized can be read");
    return;
  }
  const Tokenizer tokenizer = Tokenizer::load(model.directory());
  page.fact("tokens", fmt::format("{} of {} rows of the embedding", with_commas(tokenizer.vocab_size()),
                                  with_commas(vocab_size)));
  const SpecialTokens& special = tokenizer.special_tokens();
  const auto named = [&](const char* name, std::optional<int32_t> id) {
    if (id) page.fact(name, fmt::format("{} ({})", tokenizer.id_to_token(*id).value_or("?"), *id));
  };
  named("bos", special.bos);
  named("eos", special.eos);
  named("pad", special.pad);
  print_chat(page, tokenizer);
}

void print_patterns(Page& page, const ParameterStore& store) {
  page.title("names, as patterns for lora_target_modules, freeze_parameters and trainable_parameters");
  Table table({{"pattern"}, {"tensors", Align::kRight}, {"shape"}, {"group"}});
  for (const NamePattern& pattern : name_patterns(store)) {
    table.add_row({pattern.glob, with_commas(pattern.tensors), pattern.shape, pattern.group});
  }
  page.table(table);
  print_text("  Words for groups of them: attention, all-linear, all-experts. The end of a name works too: q_proj.\n");
}

Table tensor_table() { return Table({{"tensor"}, {"dtype"}, {"shape"}, {"size", Align::kRight}, {"file"}}); }

/// `file`: a SafetensorsFile, or the weights of an adapter.
template <class File>
void add_tensors(const File& file, Table& table) {
  for (const SafetensorsEntry& entry : file.entries()) {
    table.add_row({one_line(entry.name), std::string(entry.dtype_name()), entry.shape_text(), human_bytes(entry.bytes),
                   file.path().filename().string()});
  }
}

void print_tensors(Page& page, const Checkpoint& checkpoint) {
  std::set<const SafetensorsFile*> files;
  for (const auto& [name, tensor] : checkpoint.tensors()) files.insert(tensor.file);
  std::vector<const SafetensorsFile*> ordered(files.begin(), files.end());
  std::sort(ordered.begin(), ordered.end(), [](const auto* a, const auto* b) { return a->path() < b->path(); });
  page.title("tensors");
  Table table = tensor_table();
  for (const SafetensorsFile* file : ordered) add_tensors(*file, table);
  page.table(table);
}

void inspect_model(Page& page, const std::string& path, bool tensors) {
  const ModelSource source = find_model(path);
  const auto planned = planned_model(source, DType::kBF16);
  LoadedModel& model = *planned;
  const DecoderConfig& config = model.decoder().config();
  print_architecture(page, model, config);
  print_groups(page, model.store(), config);
  if (source.has_weights) {
    print_files(page, model);
  } else {
    page.title("files");
    page.fact("weights", what_is_missing(source));
  }
  if (!source.directory.empty()) print_tokenizer(page, model, config.vocab_size);
  print_patterns(page, model.store());
  if (tensors && source.has_weights) print_tensors(page, model.checkpoint());
}

/// The text of a field of adapter_config.json, or "-".
std::string field_text(const Json& config, const char* key) {
  if (!config.contains(key) || config[key].is_null()) return "-";
  return config[key].is_string() ? config[key].get<std::string>() : config[key].dump();
}

void inspect_adapter(Page& page, const fs::path& directory, bool tensors) {
  const fs::path config_path = directory / "adapter_config.json";
  const Json config = read_json(config_path);
  if (!config.is_object()) throw UserError("adapter_config.json is not a JSON object", config_path.string());
  const AdapterWeights file(directory);
  page.title(fmt::format("{} adapter  ({})", field_text(config, "peft_type"), directory.string()));
  page.fact("base model", field_text(config, "base_model_name_or_path"));
  std::vector<std::string> keys = {"r", "lora_alpha", "lora_dropout", "use_rslora"};
  for (const AdapterKind& kind : adapter_kinds()) {
    if (!kind.key.empty()) keys.emplace_back(kind.key);
  }
  keys.insert(keys.end(),
              {"target_modules", "target_parameters", "exclude_modules", "modules_to_save", "peft_version"});
  for (const std::string& key : keys) page.fact(key, field_text(config, key.c_str()));
  try {
    for (const std::string& warning : check_adapter_keys(config, config_path)) page.fact("warning", warning);
  } catch (const UserError& error) {
    page.fact("cannot be used here", error.message());
  }
  std::map<std::string, GroupCount> groups;
  std::map<std::string_view, uint64_t> bytes;
  int64_t parameters = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    GroupCount& group = groups[glob_of(entry.name)];
    ++group.tensors;
    group.parameters += entry.numel();
    parameters += entry.numel();
    bytes[entry.dtype_name()] += entry.bytes;
  }
  page.fact("dtype", dtypes_text(bytes));
  page.fact("parameters", with_commas(parameters));
  page.title("tensors, by name");
  Table table({{"name"}, {"tensors", Align::kRight}, {"parameters", Align::kRight}});
  for (const auto& [glob, group] : groups) {
    table.add_row({one_line(glob), with_commas(group.tensors), with_commas(group.parameters)});
  }
  page.table(table);
  if (!tensors) return;
  page.title("tensors");
  Table all = tensor_table();
  add_tensors(file, all);
  page.table(all);
}

}  // namespace

int run_inspect(const InspectOptions& options) {
  Page page(Terminal::of(1).color);
  const fs::path path(options.path);
  if (is_adapter_folder(path)) {
    inspect_adapter(page, path, options.tensors);
  } else {
    inspect_model(page, options.path, options.tensors);
  }
  return 0;
}

}  // namespace hone
