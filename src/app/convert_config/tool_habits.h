// What tools do by themselves: settings that follow from several keys, or from none.
#pragma once

#include "app/convert_config/translation.h"

namespace hone {

/// Whether the model may have routed experts, and whether it is known that it has.
struct Experts {
  bool possible = true, known = false;
};

/// Changes what is stated, before the tool's defaults are added: Axolotl's method and packed weights, its batch and
/// shards, its pieces of long texts, the best checkpoint; Megatron's balance of routers.
void state_habits(const Tool& tool, const TranslationSource& source, const Experts& experts, Translation& result);

/// Changes the whole, after the defaults: the sum of the balancing loss over micro-batches, a warm-up of a constant
/// rate, evaluations of nothing, batches of several devices.
void finish_habits(const Tool& tool, const TranslationSource& source, const Experts& experts, Translation& result);

/// Whether LLaMA-Factory's file is one of its trainer on Megatron, which balances routers as the model's config.json
/// says.
bool trains_by_megatron(const ConfigNode& root);

/// Whether training is the same without a plugin of Axolotl: "axolotl.integrations.liger.…".
bool is_harmless_plugin(const std::string& plugin);

}  // namespace hone
