// adapter_config.json of the adapters of a store.
#pragma once

#include <string>

#include "core/json_fwd.h"
#include "params/lora.h"
#include "weights/adapter_layout.h"

namespace hone {

/// As PEFT writes it: r and lora_alpha of the run, and in rank_pattern and alpha_pattern what differs from them.
/// target_modules and modules_to_save are last parts of names where every such module of the model (or, with
/// layers_to_transform, of some layers) is meant, else whole names. exclude_modules are those of the options
/// (weights/peft_modules.h), if there are any. `base_model` is base_model_name_or_path; "": null.
Json adapter_config(const ParameterStore& store, const AdapterFiles& files, const LoraOptions& lora,
                    const std::string& base_model);

}  // namespace hone
