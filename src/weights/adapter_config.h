// adapter_config.json of the adapters of a store.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "params/lora.h"
#include "params/parameter_store.h"
#include "weights/adapter_layout.h"

namespace hone {

// exclude_modules as PEFT has it in adapter_config.json: a list of names, each a module's or the end of one at a dot,
// or one regular expression that matches a whole name. Source: PEFT 0.14 and later, check_target_module_exists.

/// LoraOptions::exclude_modules as PEFT's list where all are names, else as one expression.
Json excluded_as_peft(const ParameterStore& store, const std::vector<std::string>& patterns);

/// The config's exclude_modules as LoraOptions has them; none without. UserError, which names `path`, if it is neither
/// a list of texts nor a text.
std::vector<std::string> excluded_of_peft(const Json& config, const std::filesystem::path& path);

/// As PEFT writes it: r and lora_alpha of the run, and in rank_pattern and alpha_pattern what differs from them.
/// target_modules and modules_to_save are last parts of names where every such module of the model (or, with
/// layers_to_transform, of some layers) is meant, else whole names. exclude_modules are those of the options
/// (weights/adapter_config.h), if there are any. `base_model` is base_model_name_or_path; "": null.
Json adapter_config(const ParameterStore& store, const AdapterFiles& files, const LoraOptions& lora,
                    const std::string& base_model);

}  // namespace hone
