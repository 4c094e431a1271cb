#include "app/bench/grid/scenario_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "app/bench/bench_model.h"
#include "core/base/error.h"
#include "core/base/printable.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;
using Names = std::set<std::string>;

constexpr const char* kScenarioAxis = "scenario";

/// Arguments that change the training, its reports or its checkpoints, but not the time of a step.
const Names kWithoutEffect = {"learning_rate",
                              "lr_scheduler_type",
                              "warmup_steps",
                              "warmup_ratio",
                              "weight_decay",
                              "adam_epsilon",
                              "adam_beta1",
                              "adam_beta2",
                              "max_grad_norm",
                              "logging_steps",
                              "logging_strategy",
                              "save_strategy",
                              "save_steps",
                              "evaluation_strategy",
                              "eval_strategy",
                              "num_train_epochs",
                              "include_tokens_per_second",
                              "packing",
                              "dataset_text_field",
                              "training_data_path",
                              "response_template",
                              "use_flash_attn",
                              "split_batches",
                              "dataloader_num_workers",
                              "lora_alpha",
                              "lora_dropout",
                              "seed"};

/// Words of a framework's name beside ep1, ep2, …: kernels and batches without padding, which are always on here.
const Names kFrameworkWords = {"moe",  "scattermoe", "granite",  "mixtral", "padding",
                               "free", "foak",       "baseline", "fast"};

std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : in_lower_case(name)) {
    if (c == '-' || c == '_') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

/// Whether `words` has all of `wanted`, in their order.
bool has_in_order(const std::vector<std::string>& words, const std::vector<std::string>& wanted) {
  auto at = words.begin();
  for (const std::string& word : wanted) {
    at = std::find(at, words.end(), word);
    if (at == words.end()) return false;
    ++at;
  }
  return true;
}

/// A folder, or the shape all of whose words the id of a model has: granite-3b-a800m of granite-3.0-3b-a800m-instruct.
std::string model_of(const ConfigNode& node) {
  if (std::filesystem::exists(node.text)) return node.text;
  const std::vector<std::string> words = words_of(node.text.substr(node.text.rfind('/') + 1));
  for (const std::string& shape : bench_model_names()) {
    if (has_in_order(words, words_of(shape))) return shape;
  }
  throw UserError(fmt::format("the shape of '{}' is not known, and there is no such folder", node.text), node.where,
                  fmt::format("name a folder, or one of {}", fmt::join(bench_model_names(), ", ")));
}

/// The ranks over which a framework's name says that experts are spread; 1 if it says nothing.
int64_t expert_ranks_of(const ConfigNode& framework) {
  int64_t ranks = 1;
  for (const std::string& word : words_of(framework.text)) {
    if (kFrameworkWords.contains(word)) continue;
    const char *begin = word.data() + 2, *end = word.data() + word.size();
    const bool spread = word.starts_with("ep") && word.size() > 2;
    if (spread && std::from_chars(begin, end, ranks).ptr == end && ranks > 0) continue;
    throw UserError(fmt::format("what '{}' says in the framework '{}' is not known", word, framework.text),
                    framework.where, "state its settings in a grid of your own (docs/benchmarks.md)");
  }
  return ranks;
}

class ScenarioReader {
 public:
  ScenarioReader(const ScenarioSizes& sizes, std::vector<std::string>& notes) : sizes_(sizes), notes_(notes) {
    if (sizes_.ranks.empty()) sizes_.ranks = {1};
  }

  ConfigNode read(const ConfigNode& root) {
    where_ = root.where;
    bundles_ = ConfigNode::empty(Kind::kMapping, where_);
    exclusions_ = ConfigNode::empty(Kind::kSequence, where_);
    for (const auto& [name, value] : root.members) {
      if (name == "scenarios") continue;
      throw UserError(fmt::format("a file of scenarios has no '{}'", name), value.where, "it has scenarios alone");
    }
    const ConfigNode& list = *root.find("scenarios");
    if (list.kind != Kind::kSequence) {
      throw UserError("scenarios is not a list", list.where, "write - name: …, with framework_config and arguments");
    }
    for (const ConfigNode& entry : list.items) read_scenario(entry);
    if (!without_effect_.empty()) {
      notes_.push_back(fmt::format("no effect on the time of a step: {}", fmt::join(without_effect_, ", ")));
    }
    return grid();
  }

 private:
  void read_scenario(const ConfigNode& entry) {
    const ConfigNode* name = entry.kind == Kind::kMapping ? entry.find("name") : nullptr;
    const ConfigNode* arguments = name ? entry.find("arguments") : nullptr;
    if (!arguments || arguments->kind != Kind::kMapping || name->kind != Kind::kScalar) {
      throw UserError("a scenario has no name or no arguments", entry.where,
                      "write name: …, framework_config: […] and arguments: {…}");
    }
    std::vector<ConfigNode> frameworks = {ConfigNode::empty(Kind::kNull, entry.where)};
    for (const auto& [key, value] : entry.members) {
      if (key == "framework_config") frameworks = value.listed();
      if (key == "slow" || key == "name" || key == "arguments" || key == "framework_config") continue;
      throw UserError(fmt::format("a scenario has no '{}'", key), value.where,
                      "it has name, framework_config and arguments");
    }
    if (frameworks.empty()) frameworks.push_back(ConfigNode::empty(Kind::kNull, entry.where));
    for (const ConfigNode& framework : frameworks) add(name->text, framework, *arguments);
  }

  /// Adds a bundle for each combination of the lists under arguments.
  void add(const std::string& name, const ConfigNode& framework, const ConfigNode& arguments) {
    const bool none = framework.kind == Kind::kNull;
    const std::string label = fmt::format("{}/{}", name, none ? "none" : framework.text);
    std::vector<std::pair<std::string, ConfigNode>> bundles = {
        {label, ConfigNode::empty(Kind::kMapping, framework.where)}};
    for (const auto& [key, value] : arguments.members) {
      std::vector<std::pair<std::string, ConfigNode>> more;
      const std::vector<ConfigNode> values = key == "target_modules" ? std::vector{value} : value.listed();
      for (const auto& [before, settings] : bundles) {
        for (const ConfigNode& item : values) {
          ConfigNode extended = settings;
          state(extended, key, item);
          more.emplace_back(values.size() > 1 ? before + "/" + item.text : before, std::move(extended));
        }
      }
      bundles = std::move(more);
    }
    const int64_t spread = none ? 1 : expert_ranks_of(framework);
    for (auto& [text, settings] : bundles) {
      if (spread > 1) settings.put("expert_parallel_size", ConfigNode::scalar(std::to_string(spread), framework.where));
      exclude_undivided(text, spread);
      bundles_.members.emplace_back(text, std::move(settings));
    }
  }

  /// The setting of bench step that an argument is.
  void state(ConfigNode& settings, const std::string& key, const ConfigNode& value) {
    static const std::map<std::string, const char*> kNames = {
        {"per_device_train_batch_size", "batch"}, {"max_seq_length", "seq"}, {"max_steps", "steps"}, {"r", "lora_r"}};
    const auto put = [&](const char* name, std::string text) {
      settings.put(name, ConfigNode::scalar(std::move(text), value.where));
    };
    if (value.kind == Kind::kNull) return;
    if (const auto found = kNames.find(key); found != kNames.end()) return put(found->second, value.text);
    if (key == "model_name_or_path") return put("model", model_of(value));
    if (key == "gradient_accumulation_steps") {
      if (!sizes_.global_batch) put("micro_batches", value.text);
      return;
    }
    if (key == "torch_dtype") return put("dtype", dtype_of_name(value));
    if (key == "gradient_checkpointing") return put("recompute", switch_of(value) ? "everything" : "none");
    if (key == "peft_method") {
      const std::string mode = lora_of(value);
      if (!settings.find("mode")) put("mode", mode);  // target_modules says more
      return;
    }
    if (key == "target_modules") return put("mode", lora_mode_of(value));
    if (!kWithoutEffect.contains(key)) {
      throw UserError(fmt::format("the argument '{}' is not known here", key), value.where,
                      "take it out, or state its setting in a grid of your own (docs/benchmarks.md)");
    }
    without_effect_.insert(key);
  }

  static std::string dtype_of_name(const ConfigNode& value) {
    if (value.text == "float16" || value.text == "fp16") {
      throw UserError("float16 is not in this version", value.where, "write bfloat16 or float32");
    }
    return value.text;
  }

  static bool switch_of(const ConfigNode& value) {
    bool on = false;
    if (parse_bool(value.text, on)) return on;
    throw UserError(fmt::format("'{}' is neither true nor false", shown(value)), value.where);
  }

  static std::string lora_of(const ConfigNode& value) {
    if (value.text == "lora") return "lora";
    throw UserError(fmt::format("peft_method is '{}'", value.text), value.where, "lora is known, or leave it out");
  }

  /// LoRA on attention alone, or on experts and dense layers, too.
  static std::string lora_mode_of(const ConfigNode& value) {
    static const Names kAttention = {"q_proj", "k_proj", "v_proj", "o_proj"};
    const std::vector<ConfigNode> items = value.listed();
    const bool attention =
        std::all_of(items.begin(), items.end(), [](const ConfigNode& item) { return kAttention.contains(item.text); });
    return attention ? "lora" : "lora-all";
  }

  void exclude_undivided(const std::string& label, int64_t spread) {
    for (const int64_t ranks : sizes_.ranks) {
      if (ranks == 1 || ranks % spread == 0) continue;
      ConfigNode entry = ConfigNode::empty(Kind::kMapping, where_);
      entry.put(kScenarioAxis, ConfigNode::scalar(label, where_));
      entry.put("ranks", ConfigNode::scalar(std::to_string(ranks), where_));
      exclusions_.items.push_back(std::move(entry));
      notes_.push_back(fmt::format("{} with {} ranks is left out: {} do not divide them", label, ranks, spread));
    }
  }

  ConfigNode grid() {
    ConfigNode root = ConfigNode::empty(Kind::kMapping, where_), matrix = root, defaults = root;
    ConfigNode ranks = ConfigNode::empty(Kind::kSequence, where_);
    for (const int64_t count : sizes_.ranks) ranks.items.push_back(ConfigNode::scalar(std::to_string(count), where_));
    matrix.put(kScenarioAxis, bundles_);
    matrix.put("ranks", ranks);
    defaults.put("zero_stage", ConfigNode::scalar("3", where_));
    if (sizes_.global_batch)
      defaults.put("global_batch", ConfigNode::scalar(std::to_string(*sizes_.global_batch), where_));
    root.put("defaults", defaults);
    root.put("matrix", matrix);
    if (!exclusions_.items.empty()) root.put("exclude", exclusions_);
    return root;
  }

  ScenarioSizes sizes_;
  std::vector<std::string>& notes_;
  std::string where_;
  ConfigNode bundles_, exclusions_;
  Names without_effect_;
};

}  // namespace

bool is_scenario_file(const ConfigNode& root) { return root.find("scenarios") != nullptr; }

ConfigNode grid_of_scenarios(const ConfigNode& root, const ScenarioSizes& sizes, std::vector<std::string>& notes) {
  return ScenarioReader(sizes, notes).read(root);
}

}  // namespace hone
