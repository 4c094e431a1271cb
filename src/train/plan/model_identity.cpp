#include "train/plan/model_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/checksum.h"
#include "core/text/json.h"
#include "data/dataset/token_cache.h"
#include "formats/weight_format.h"
#include "params/adapter_kind.h"
#include "params/expert_parts.h"

namespace hone {

namespace {

/// Fields of config.json that say where a model comes from, or how it is held in memory.
bool changes_nothing(const std::string& field) {
  static const std::set<std::string> names = {"transformers_version", "torch_dtype", "dtype", "use_cache"};
  return field.starts_with('_') || names.contains(field);
}

/// The other fields, in the order of their names.
Json without_inert_fields(const Json& config) {
  std::map<std::string, Json> kept;
  for (const auto& [name, value] : config.items()) {
    if (!changes_nothing(name) && !value.is_null())
      kept[name] = value.is_object() ? without_inert_fields(value) : value;
  }
  Json json = Json::object();
  for (auto& [name, value] : kept) json[name] = std::move(value);
  return json;
}

/// A hash of some bytes of tensors evenly spread over all. Other training changes nearly every value of a model, so a
/// sample tells them apart; all bytes would be read from the disk twice.
std::string hash_of_sample(const Checkpoint& base) {
  constexpr size_t kTensors = 256;
  constexpr uint64_t kBytes = 64;
  const size_t every = std::max<size_t>(base.tensors().size() / kTensors, 1);
  Xxh64 hash;
  size_t index = 0;
  for (const auto& [name, tensor] : base.tensors()) {
    if (index++ % every != 0) continue;
    std::array<char, kBytes> bytes = {};
    const uint64_t count = std::min(kBytes, tensor.entry->bytes);
    tensor.file->read(*tensor.entry, (tensor.entry->bytes - count) / 2, bytes.data(), count);
    hash.update(std::string_view(bytes.data(), count));
  }
  return hash_text(hash.digest());
}

/// What holds for the weights of a kind in some layers.
class ByLayer {
 public:
  /// `name`: of a weight, with the number of its layer.
  void add(const std::string& name, const std::string& what) {
    static constexpr std::string_view kLayers = ".layers.";
    const size_t at = name.find(kLayers), begin = at + kLayers.size();
    size_t end = begin;
    while (at != std::string::npos && end < name.size() && std::isdigit(static_cast<unsigned char>(name[end]))) ++end;
    if (at == std::string::npos || end == begin || end - begin > 9) {
      layers_[{name, what}];
    } else {
      layers_[{name.substr(0, begin) + "*" + name.substr(end), what}].insert(
          std::stoll(name.substr(begin, end - begin)));
    }
  }

  /// Kind of weights → "LoRA r 4, scaling 2 in layers 0-3; LoRA r 8, scaling 2 in layers 4, 6-7".
  Json to_json() const {
    std::map<std::string, std::vector<std::string>> texts;
    for (const auto& [key, layers] : layers_) {
      texts[key.first].push_back(layers.empty() ? key.second
                                                : fmt::format("{} in layers {}", key.second, ranges_of(layers)));
    }
    Json json = Json::object();
    for (const auto& [name, parts] : texts) json[name] = fmt::format("{}", fmt::join(parts, "; "));
    return json;
  }

 private:
  static std::string ranges_of(const std::set<int64_t>& layers) {
    std::vector<std::string> ranges;
    for (auto first = layers.begin(); first != layers.end();) {
      auto last = first;
      auto next = std::next(first);
      while (next != layers.end() && *next == *last + 1) last = next++;
      ranges.push_back(first == last ? fmt::format("{}", *first) : fmt::format("{}-{}", *first, *last));
      first = next;
    }
    return fmt::format("{}", fmt::join(ranges, ", "));
  }

  std::map<std::pair<std::string, std::string>, std::set<int64_t>> layers_;
};

Json packed_formats(const ParameterStore& store) {
  ByLayer formats;
  for (const Parameter& p : store.all()) {
    if (p.value().packed() || &p.value().format() == &int8_format())
      formats.add(p.name(), std::string(p.value().format().name()));
  }
  return formats.to_json();
}

Json adapter_rows(const ParameterStore& store, const LoraOptions& options) {
  ByLayer rows;
  for (const Parameter& p : store.all()) {
    for (const auto& attached : p.adapters()) {
      const std::string part = is_experts(p) ? fmt::format(" ({})", attached->place().target) : "";
      const AdapterScale& scale = attached->scale();
      rows.add(p.name() + part,
               fmt::format("{}{} r {}, scaling {}", attached->place().shared ? "shared " : "", attached->kind().name,
                           scale.rank, options.scaling(scale.alpha, scale.rank)));
    }
  }
  return rows.to_json();
}

template <class Value>
Json or_unset(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// What may be changed between two starts and changes the steps that follow.
Json training_settings(const RunConfig& config) {
  const RunConfig::Schedule& schedule = config.schedule;
  const RunConfig::Optim& optim = config.optim;
  return {{"dtype", name_of(config.model.dtype)},
          {"seed", config.machine.seed},
          {"learning_rate", schedule.learning_rate},
          {"lr_scheduler_type", name_of(schedule.lr_scheduler_type)},
          {"min_lr", or_unset(schedule.min_lr)},
          {"min_lr_ratio", or_unset(schedule.min_lr_ratio)},
          {"warmup_steps", or_unset(schedule.warmup_steps)},
          {"warmup_ratio", schedule.warmup_ratio},
          {"optim", name_of(optim.name)},
          {"optim_args", optim.args},
          {"adam_beta1", optim.adam_beta1},
          {"adam_beta2", optim.adam_beta2},
          {"adam_epsilon", optim.adam_epsilon},
          {"weight_decay", optim.weight_decay},
          {"decay_norms_and_biases", optim.decay_norms_and_biases},
          {"max_grad_norm", optim.max_grad_norm},
          {"label_smoothing_factor", optim.label_smoothing_factor},
          {"neftune_noise_alpha", optim.neftune_noise_alpha},
          {"router_aux_loss_coef", or_unset(config.model.router_aux_loss_coef)},
          {"aux_loss_reduction", name_of(config.model.aux_loss_reduction)},
          {"router_z_loss_coef", config.model.router_z_loss_coef},
          {"router_jitter_noise", or_unset(config.model.router_jitter_noise)},
          {"lora_dropout", config.lora.dropout.value_or(0)},
          {"loraplus_lr_ratio", config.lora.loraplus_lr_ratio}};
}

Json object_of(const Json& identity, const char* name) {
  const auto found = identity.find(name);
  return found != identity.end() && found->is_object() ? *found : Json::object();
}

/// As describe_differences, with members that are only in `before`.
std::string differences(const Json& before, Json now) {
  for (const auto& [name, value] : before.items()) {
    if (!now.contains(name)) now[name] = nullptr;
  }
  return describe_differences(before, now);
}

/// The first differences of many, each after `what`.
std::string first_rows(const Json& before, const Json& now, const std::string& what) {
  constexpr size_t kShown = 2;
  std::vector<std::string> texts;
  size_t count = 0;
  const auto add = [&](const std::string& name, const Json& value, const Json& old) {
    if (value == old || count++ >= kShown) return;
    const auto text = [](const Json& row) { return row.is_string() ? row.get<std::string>() : std::string("none"); };
    texts.push_back(fmt::format("{} of {} is {}, was {}", what, name, text(value), text(old)));
  };
  for (const auto& [name, value] : now.items()) add(name, value, before.value(name, Json()));
  for (const auto& [name, value] : before.items()) {
    if (!now.contains(name)) add(name, Json(), value);
  }
  if (count > kShown) texts.push_back(fmt::format("and {} more", count - kShown));
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace

Json base_identity(const LoadedModel& model) {
  Xxh64 tensors;
  for (const auto& [name, tensor] : model.checkpoint().tensors()) {
    tensors.update(fmt::format("{} {} {}\n", name, tensor.entry->dtype_name(), tensor.entry->shape_text()));
  }
  return {{"config", without_inert_fields(model.config().json())},
          {"tensors_hash", hash_text(tensors.digest())},
          {"values_hash", hash_of_sample(model.checkpoint())}};
}

Json model_identity(const DescribedModel& described) {
  const LoadedModel& model = *described.model;
  const auto& lora = model.lora();
  const Json settings = training_settings(described.config);
  if (!lora) return {{"finetuning_type", "full"}, {"settings", settings}};
  return {{"finetuning_type", "lora"},
          {"base", base_identity(model)},
          {"packed", packed_formats(described.model->store())},
          {"adapters", adapter_rows(described.model->store(), *lora)},
          {"options", {{"lora_r", lora->r}, {"lora_alpha", lora->alpha}, {"use_rslora", lora->use_rslora}}},
          {"settings", settings}};
}

ModelDifference model_difference(const Json& before, const Json& now) {
  ModelDifference difference;
  std::vector<std::string> refused, keys;
  const auto refuse = [&](std::string text, std::string key) {
    refused.push_back(std::move(text));
    keys.push_back(std::move(key));
  };
  const Json was = before.value("finetuning_type", Json()), is = now.value("finetuning_type", Json());
  if (was != is) {
    difference.refused = describe_differences(Json{{"finetuning_type", was}}, Json{{"finetuning_type", is}});
    difference.keys = "finetuning_type";
    return difference;
  }
  const Json old_base = object_of(before, "base"), base = object_of(now, "base");
  if (old_base != base) {
    std::vector<std::string> texts;
    if (const std::string config = differences(object_of(old_base, "config"), object_of(base, "config"));
        !config.empty())
      texts.push_back("config.json of the base: " + config);
    const auto differs = [&](const char* hash) { return old_base.value(hash, Json()) != base.value(hash, Json()); };
    if (differs("tensors_hash"))
      texts.push_back("the base's tensors have other names, dtypes or shapes");
    else if (differs("values_hash"))
      texts.push_back("the base's weights have other values");
    if (!texts.empty()) refuse(fmt::format("{}", fmt::join(texts, "; ")), "model_name_or_path");
  }
  if (object_of(before, "packed") != object_of(now, "packed")) {
    refuse(first_rows(object_of(before, "packed"), object_of(now, "packed"), "the packed format"),
           "base_weight_dtype, base_weight_keep and expert_weight_dtype");
  }
  if (object_of(before, "adapters") != object_of(now, "adapters")) {
    const std::string options = differences(object_of(before, "options"), object_of(now, "options"));
    const std::string rows = first_rows(object_of(before, "adapters"), object_of(now, "adapters"), "the adapter");
    refuse(options.empty() ? rows : options + "; " + rows, "the adapter's targets, ranks and alphas");
  }
  difference.refused = fmt::format("{}", fmt::join(refused, "; "));
  difference.keys = fmt::format("{}", fmt::join(keys, ", "));
  Json stated = Json::object();  // by the version that wrote the checkpoint, too
  const Json old_settings = object_of(before, "settings"), settings = object_of(now, "settings");
  for (const auto& [name, value] : settings.items()) {
    if (old_settings.contains(name)) stated[name] = value;
  }
  difference.named = describe_differences(old_settings, stated);
  return difference;
}

}  // namespace hone
