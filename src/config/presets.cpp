#include "config/presets.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/schema.h"
#include "core/base/error.h"

namespace hone {
namespace {

const std::vector<std::string> kLength = {"num_train_epochs", "max_steps"};
const std::vector<std::string> kValidation = {"eval_datasets", "eval_strategy", "save_strategy"};

PresetValue passes(double epochs, const char* why) { return {"num_train_epochs", epochs, epochs, why, kLength}; }

PresetValue rate(double full, double lora, const char* why) { return {"learning_rate", full, lora, why, {}}; }

PresetValue decay(double value, const char* why) { return {"weight_decay", value, value, why, {}}; }

PresetValue accumulation(int64_t steps, const char* why) {
  return {"gradient_accumulation_steps", steps, steps, why, {"optimizer_in_backward"}};
}

std::vector<Preset> build_presets() {
  return {
      {"quick",
       "see within minutes whether data, template and memory are right, and the loss falls",
       {{"max_steps", 100, 100, "long enough for a trend", kLength},
        accumulation(8, "steps are short"),
        {"warmup_ratio", 0.1, 0.1, "10 of 100 steps", {}},
        {"save_total_limit", 1, 1, "nothing here is worth keeping", {}}}},
      {"full",
       "make a whole run whose best state is kept",
       {passes(3, "what most data sets take"),
        accumulation(16, "gradients of 16 packs are steady enough"),
        rate(1e-5, 2e-4, "adapters start at zero and take twenty times as much"),
        {"min_lr_ratio", 0.1, 0.1, "the last steps still learn", {}},
        decay(0.01, "a little, against growing weights"),
        {"val_split", 0.05, 0.05, "5 % of the samples show overfitting", kValidation},
        {"load_best_model_at_end", true, true, "the best by eval_loss, not the last", kValidation}}},
      {"memory",
       "fit where memory is short, at the price of time",
       {{"per_device_train_batch_size", 1, 1, "activations grow with it", {}},
        accumulation(32, "the batch is large all the same"),
        {"gradient_checkpointing", "true", "true", "activations are computed twice instead of kept", {}},
        {"optim",
         "adamw_8bit",
         "adamw",
         "moments of 8 bits; those of adapters are small anyway",
         {"opt_m_dtype", "opt_v_dtype"}}}},
      {"conservative",
       "change a good model carefully, or learn from few or noisy samples",
       {passes(5, "small steps need more of them"),
        accumulation(32, "steadier gradients"),
        rate(5e-6, 1e-4, "half of balanced"),
        {"warmup_ratio", 0.1, 0.1, "a slow start", {}},
        decay(0.1, "holds weights back")}},
      {"balanced",
       "make a first real run",
       {passes(3, "what most data sets take"),
        accumulation(16, "gradients of 16 packs are steady enough"),
        rate(1e-5, 2e-4, "adapters start at zero and take twenty times as much"),
        {"min_lr_ratio", 0.1, 0.1, "the last steps still learn", {}},
        decay(0.01, "a little, against growing weights")}},
      {"aggressive",
       "learn much that is new from many samples; watch eval_loss and grad_norm",
       {passes(2, "large steps need fewer of them"), accumulation(8, "twice as many steps as balanced"),
        rate(2e-5, 3e-4, "up to where loss spikes are seen"), decay(0.001, "hardly any")}},
  };
}

/// Whether the configuration states the key of `value`, one with the same meaning in other units, or one of `unless`.
bool is_decided(const ResolvedConfig& config, const PresetValue& value) {
  const auto stated = [&](const std::string& name) { return config.states(name); };
  if (stated(value.key) || std::any_of(value.unless.begin(), value.unless.end(), stated)) return true;
  for (const auto& family : key_families()) {
    const bool member = std::find(family.begin(), family.end(), value.key) != family.end();
    if (member && std::any_of(family.begin(), family.end(), stated)) return true;
  }
  return false;
}

std::string shown_value(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = build_presets();
  return all;
}

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Preset& preset : presets()) all.push_back(preset.name);
    return all;
  }();
  return names;
}

const Preset& preset_called(const std::string& name) {
  const auto found =
      std::find_if(presets().begin(), presets().end(), [&](const Preset& preset) { return preset.name == name; });
  HONE_ASSERT(found != presets().end(), name);
  return *found;
}

void apply_preset(ResolvedConfig& config) {
  const std::string name = config.run.schedule.preset;
  if (name.empty()) return;
  const bool lora = config.run.model.finetuning_type == FinetuningType::kLora;
  // Select all values before any is set, so that values of a preset do not affect each other.
  std::vector<const PresetValue*> chosen;
  for (const PresetValue& value : preset_called(name).values) {
    if (!is_decided(config, value)) chosen.push_back(&value);
  }
  std::string set;
  for (const PresetValue* value : chosen) {
    const Json& json = lora ? value->lora : value->full;
    key_spec(value->key).store(config.run, json);
    config.stated[value->key] = "preset " + name;
    set += fmt::format("{}{} {}", set.empty() ? "" : ", ", value->key, shown_value(json));
  }
  if (!set.empty()) config.notes.push_back(fmt::format("preset {} sets {}", name, set));
}

std::string presets_markdown() {
  std::string text =
      "\n## Presets\n\n`preset: NAME` (or `hone init --preset NAME`) sets the defaults below. Whatever the "
      "configuration states itself wins, also in\nother units (`warmup_steps` over `warmup_ratio`), and the start of a "
      "run "
      "says what was set.\n";
  for (const Preset& preset : presets()) {
    text += fmt::format("\n### {}\n\nTo {}.\n\n| key | value | why |\n|---|---|---|\n", preset.name, preset.purpose);
    for (const PresetValue& value : preset.values) {
      const std::string full = shown_value(value.full), lora = shown_value(value.lora);
      const std::string both = full == lora ? "`" + full + "`" : fmt::format("`{}`; LoRA `{}`", full, lora);
      text += fmt::format("| `{}` | {} | {} |\n", value.key, both, value.why);
    }
  }
  return text;
}

}  // namespace hone
