#include "weights/adapter_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/text/json.h"

namespace hone {
namespace {

using Use = AdapterKey::Use;
using Value = AdapterKey::Value;
using Means = AdapterStart::Means;

constexpr std::string_view kStart = "init_lora_weights";
constexpr std::string_view kMergeWithPeft =
    "merge it with PEFT (merge_and_unload, then save_pretrained), and use the model that this gives";
constexpr std::string_view kNotMergeable = "use it with PEFT; it cannot be merged into weights";
constexpr std::string_view kTrainAgain = "train a LoRA without it";
constexpr std::string_view kConversion =
    "have PEFT write it as a plain LoRA: save_pretrained(…, path_initial_model_for_weight_conversion=FOLDER), with the "
    "adapter as it was before training in FOLDER; or merge it with PEFT (merge_and_unload)";

constexpr AdapterKey kKeys[] = {
    {"peft_type"},
    {"peft_version"},
    {"base_model_name_or_path"},
    {"r"},
    {"lora_alpha", Use::kRead, Value::kNumber},
    {"lora_dropout", Use::kRead, Value::kNumber},
    {"target_modules", Use::kRead, Value::kNames},
    {"target_parameters", Use::kRead, Value::kNames},
    {"exclude_modules", Use::kRead, Value::kNames},
    {"modules_to_save", Use::kRead, Value::kNames},
    {"layers_to_transform"},
    {"layers_pattern", Use::kRead, Value::kNames},
    {"rank_pattern"},
    {"alpha_pattern"},
    {"use_rslora", Use::kRead, Value::kBool},
    {"use_dora", Use::kRead, Value::kBool},
    {kStart},

    {"task_type", Use::kNeutral},          // names the class of the base model
    {"auto_mapping", Use::kNeutral},       // the same, of other libraries
    {"revision", Use::kNeutral},           // where the base was downloaded
    {"inference_mode", Use::kNeutral},     // whether loading lets it be trained
    {"runtime_config", Use::kNeutral},     // where DoRA's norms are computed
    {"megatron_core", Use::kNeutral},      // a module's name, for megatron_config
    {"qalora_group_size", Use::kNeutral},  // for use_qalora
    {"loftq_config", Use::kNeutral},       // these four: for their init_lora_weights
    {"eva_config", Use::kNeutral},
    {"corda_config", Use::kNeutral},
    {"lora_ga_config", Use::kNeutral},
    {"ensure_weight_tying", Use::kNeutral},  // how tied weights are trained; the file has the results

    {"bias", Use::kAtRest, Value::kAny, R"("none")", "biases of the model are trained with the adapter",
     kMergeWithPeft},
    {"lora_bias", Use::kAtRest, Value::kAny, "false", "B has a bias", kMergeWithPeft},
    {"fan_in_fan_out", Use::kAtRest, Value::kAny, "false", "weights are stored [in, out]",
     "it is false for these models"},
    {"layer_replication", Use::kAtRest, Value::kAny, "", "the model has layers more than once", kNotMergeable},
    {"megatron_config", Use::kAtRest, Value::kAny, "", "the layers are those of Megatron", kTrainAgain},
    {"alora_invocation_tokens", Use::kAtRest, Value::kAny, "", "the adapter acts only from these tokens on (aLoRA)",
     kNotMergeable},
    {"trainable_token_indices", Use::kAtRest, Value::kAny, "", "rows of the embedding are trained with the adapter",
     kMergeWithPeft},
    {"use_qalora", Use::kAtRest, Value::kAny, "false", "A reads means of groups of inputs (QALoRA)", kTrainAgain},
    {"use_bdlora", Use::kAtRest, Value::kAny, "", "A or B is block-diagonal (BD-LoRA)", kMergeWithPeft},
    {"arrow_config", Use::kAtRest, Value::kAny, "", "each token is routed to some of several adapters (Arrow)",
     kNotMergeable},
    {"velora_config", Use::kAtRest, Value::kAny, "", "the adapter is a VeLoRA", kMergeWithPeft},
    {"monteclora_config", Use::kAtRest, Value::kAny, "", "A is drawn at random around its mean (MonteCLoRA)",
     kMergeWithPeft},
    {"kasa_config", Use::kAtRest, Value::kAny, "",
     "the base loses its smallest singular values, and a diagonal is between A and B (KaSA)", kMergeWithPeft},
};

constexpr std::string_view kChangesBase =
    "PEFT subtracts the adapter's start from the base model's weights when it loads the adapter, so that it fits other "
    "weights than those in the model's files";

// Source: PEFT 0.21, tuners/lora/layer.py, update_layer.
constexpr AdapterStart kStarts[] = {
    {"true"},
    {"false"},
    {"gaussian"},
    {"eva"},
    {"orthogonal"},
    {"mica"},
    {"lora_ga", Means::kWarned,
     "LoRA-GA trained the adapter on weights less its start, and PEFT, as Hone, adds it to the weights as they are"},
    {"pissa*", Means::kRefused, kChangesBase},
    {"olora", Means::kRefused, kChangesBase},
    {"corda*", Means::kRefused, kChangesBase},
    {"loftq", Means::kRefused, "PEFT quantises the base model's weights and starts from what that loses"},
};

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || value == "" || ((value.is_array() || value.is_object()) && value.empty());
}

/// The value, short enough for a message.
std::string shown(const Json& value) {
  constexpr size_t kMost = 80;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kMost) return text;
  size_t end = kMost;
  while (end > 0 && (text[end] & '\xc0') == '\x80') --end;  // within a character
  return text.substr(0, end) + "…";
}

bool fits(Value kind, const Json& value) {
  const auto text = [](const Json& one) { return one.is_string(); };
  switch (kind) {
    case Value::kAny:
      return true;
    case Value::kBool:
      return value.is_boolean();
    case Value::kNumber:
      return value.is_number();
    case Value::kNames:
      return value.is_string() || (value.is_array() && std::all_of(value.begin(), value.end(), text));
  }
  return false;
}

std::string_view words_of(Value kind) {
  switch (kind) {
    case Value::kAny:
      break;
    case Value::kBool:
      return "true or false";
    case Value::kNumber:
      return "a number";
    case Value::kNames:
      return "a text or a list of texts";
  }
  return "a value";
}

void check_key(const AdapterKey& key, const Json& value, const std::filesystem::path& path) {
  if (key.use == Use::kNeutral || value.is_null()) return;
  if (key.use == Use::kRead) {
    if (fits(key.value, value)) return;
    throw UserError(fmt::format("{} of the adapter is {}, not {}", key.name, shown(value), words_of(key.value)),
                    path.string(), "correct the file");
  }
  if (says_nothing(value) || (!key.rest.empty() && value == Json::parse(key.rest))) return;
  throw UserError(fmt::format("the adapter uses {}: {}, which is not supported: {}", key.name, shown(value), key.why),
                  path.string(), std::string(key.fix));
}

bool is_named(const AdapterStart& start, const std::string& name) {
  if (!start.name.ends_with('*')) return name == start.name;
  return name.starts_with(start.name.substr(0, start.name.size() - 1));
}

void check_start(const Json& value, const std::filesystem::path& path, std::vector<std::string>& warnings) {
  if (value.is_null() || value.is_boolean()) return;
  const std::string name = value.is_string() ? in_lower_case(value.get<std::string>()) : "";
  const auto start = std::find_if(std::begin(kStarts), std::end(kStarts),
                                  [&](const AdapterStart& one) { return is_named(one, name); });
  if (start == std::end(kStarts)) {
    throw UserError(fmt::format("the adapter uses {}: {}, which this version does not know", kStart, shown(value)),
                    path.string(),
                    fmt::format("if A and B alone were initialised otherwise, write {}: true in a copy", kStart));
  }
  if (start->means == Means::kRefused) {
    throw UserError(
        fmt::format("the adapter uses {}: {}, which is not supported: {}", kStart, shown(value), start->why),
        path.string(), std::string(kConversion));
  }
  if (start->means == Means::kWarned) {
    warnings.push_back(fmt::format("{}: {} of {}: {}", kStart, shown(value), path.string(), start->why));
  }
}

}  // namespace

std::span<const AdapterKey> adapter_keys() { return kKeys; }

std::span<const AdapterStart> adapter_starts() { return kStarts; }

std::vector<std::string> check_adapter_keys(const Json& config, const std::filesystem::path& path) {
  std::vector<std::string> warnings;
  const Json type = config.value("peft_type", Json());
  if (!type.is_null() && type != "LORA") {
    throw UserError(fmt::format("the adapter uses peft_type: {}, which is not supported: only LORA is", shown(type)),
                    path.string(), std::string(kMergeWithPeft));
  }
  for (const auto& [name, value] : config.items()) {
    const auto key =
        std::find_if(std::begin(kKeys), std::end(kKeys), [&n = name](const AdapterKey& one) { return one.name == n; });
    if (key != std::end(kKeys)) {
      check_key(*key, value, path);
    } else if (!says_nothing(value)) {
      throw UserError(
          fmt::format("the adapter uses {}: {}, which this version does not know", name.substr(0, 80), shown(value)),
          path.string(), "if it changes nothing that the adapter computes, take it out of a copy of the file");
    }
  }
  check_start(config.value(std::string(kStart), Json()), path, warnings);
  return warnings;
}

}  // namespace hone
