// hone models --wanted: what this version knows of the parts of a model whose architecture it does not.
#pragma once

#include <filesystem>
#include <string>

#include "models/hf_config.h"

namespace hone {

/// What is known of the model of a config.json, as lines of text: whether its architecture is; if not, which fields
/// that say what it computes are read for others and which for none, and for the nearest architectures what of it they
/// do not read, or what they refuse.
std::string wanted_text(const HfConfig& config);

/// Prints that of a config.json or of a model's folder. Returns 0.
int run_wanted_model(const std::filesystem::path& path);

}  // namespace hone
