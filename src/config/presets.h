// Presets: named sets of defaults. Statements of a configuration have precedence over them.
#pragma once

#include <string>
#include <vector>

#include "config/resolve.h"
#include "core/text/json.h"

namespace hone {

/// One default of a preset.
struct PresetValue {
  std::string key;
  Json full, lora;                  ///< for full fine-tuning and for adapters
  std::string why;                  ///< a phrase for the documentation
  std::vector<std::string> unless;  ///< further keys that replace this default when they are stated
};

struct Preset {
  std::string name, purpose;
  std::vector<PresetValue> values;
};

/// Every preset, in the order of the documentation.
const std::vector<Preset>& presets();

const std::vector<std::string>& preset_names();

/// The preset called `name`. It must exist.
const Preset& preset_called(const std::string& name);

/// Sets the values of the configuration's preset for keys that are not stated, and adds notes about them. apply_rules
/// calls it after it has resolved finetuning_type.
void apply_preset(ResolvedConfig& config);

/// The section of docs/config.md about presets.
std::string presets_markdown();

}  // namespace hone
