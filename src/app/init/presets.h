// Presets: named sets of defaults. Whatever a configuration states wins over them.
#pragma once

#include <string>
#include <vector>

#include "app/config/resolve.h"
#include "core/json.h"

namespace hone {

/// One default of a preset.
struct PresetValue {
  std::string key;
  Json full, lora;                  ///< in full fine-tuning and with adapters
  std::string why;                  ///< half a sentence, for the documentation
  std::vector<std::string> unless;  ///< further keys that decide the same when they are stated
};

struct Preset {
  std::string name, purpose;
  std::vector<PresetValue> values;
};

/// Every preset, in the order of the documentation.
const std::vector<Preset>& presets();

/// The preset called `name`. It must exist.
const Preset& preset_called(const std::string& name);

/// Fills what the configuration's preset sets and the configuration does not state, and says so in its notes. Part of
/// apply_rules, once finetuning_type is known.
void apply_preset(ResolvedConfig& config);

/// docs/config.md's part about presets.
std::string presets_markdown();

}  // namespace hone
