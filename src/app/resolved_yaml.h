// Writes a RunConfig as config.resolved.yaml.
#pragma once

#include <string>

#include "train/run_config.h"

namespace hone {

/// Every key this version runs, under its canonical name, with its value: null where it is unset. Reading the text back
/// gives an equal RunConfig and no notes. Throws nothing.
std::string resolved_yaml(const RunConfig& run);

}  // namespace hone
