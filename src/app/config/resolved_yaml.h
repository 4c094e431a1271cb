// Writes a RunConfig as config.resolved.yaml.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/config/schema.h"
#include "session/run_config.h"

namespace hone {

/// Every key this version runs, under its canonical name, with its value: null where it is unset. Reading the text back
/// gives an equal RunConfig and no notes. Throws nothing.
std::string resolved_yaml(const RunConfig& run);

/// The same as pairs, for trackers: unset keys are left out, and mappings and lists are JSON.
std::vector<std::pair<std::string, std::string>> resolved_pairs(const RunConfig& run);

/// `key` with `value` as lines of YAML ("lora_r: 8"); "generation.top_k" stands as generation: {top_k: …}.
std::string yaml_line(const KeySpec& key, const Json& value);

}  // namespace hone
