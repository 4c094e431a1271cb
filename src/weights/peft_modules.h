// exclude_modules as PEFT has it in adapter_config.json: a list of names, each a module's or the end of one at a dot,
// or one regular expression that matches a whole name. Source: PEFT 0.14 and later, check_target_module_exists.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "params/parameter_store.h"

namespace hone {

/// LoraOptions::exclude_modules as PEFT's list where all are names, else as one expression.
Json excluded_as_peft(const ParameterStore& store, const std::vector<std::string>& patterns);

/// The config's exclude_modules as LoraOptions has them; none without. UserError, which names `path`, if it is neither
/// a list of texts nor a text.
std::vector<std::string> excluded_of_peft(const Json& config, const std::filesystem::path& path);

}  // namespace hone
