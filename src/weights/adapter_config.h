// Writes and reads adapter_config.json for the adapters of a store.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"
#include "params/lora.h"
#include "params/parameter_store.h"
#include "weights/adapter_layout.h"

namespace hone {

// exclude_modules as in PEFT's adapter_config.json: a list of module names or suffixes that begin after a dot, or one
// regular expression that matches a full name. Source: PEFT 0.14 and later, check_target_module_exists.

/// Converts LoraOptions::exclude_modules to PEFT's list if all are names, else to one expression.
Json excluded_as_peft(const ParameterStore& store, const std::vector<std::string>& patterns);

/// Converts the config's exclude_modules to LoraOptions::exclude_modules; empty if absent. UserError with `path` if it
/// is neither a list of strings nor a string.
std::vector<std::string> excluded_of_peft(const Json& config, const std::filesystem::path& path);

/// The config as PEFT writes it: r and lora_alpha of the run, with exceptions in rank_pattern and alpha_pattern.
/// target_modules and modules_to_save are last parts of names if they select every such module of the model (or of the
/// layers in layers_to_transform), else full names, as for a text model inside a larger model. exclude_modules are
/// those of `lora`, if any. `base_model` is base_model_name_or_path; "": null.
Json adapter_config(const ParameterStore& store, const AdapterFiles& files, const LoraOptions& lora,
                    const std::string& base_model);

}  // namespace hone
