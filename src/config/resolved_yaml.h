// Writes a RunConfig as config.resolved.yaml.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "config/schema.h"

namespace hone {

/// All keys that this version supports, with canonical names and values (null if unset). Reading the text gives an
/// equal RunConfig without notes. Does not throw.
std::string resolved_yaml(const RunConfig& run);

/// The same as pairs for trackers, without unset keys; mappings and lists are JSON.
std::vector<std::pair<std::string, std::string>> resolved_pairs(const RunConfig& run);

/// `key` with `value` as lines of YAML ("lora_r: 8"); "generation.top_k" becomes generation: {top_k: …}.
std::string yaml_line(const KeySpec& key, const Json& value);

}  // namespace hone
