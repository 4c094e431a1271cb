// Names of keys in output_dir: "out/{learning_rate}-{weight_decay}" is a folder for each pair of values.
#pragma once

#include <string>

#include "config/resolve.h"

namespace hone {

/// Replaces each {KEY} in output_dir by the resolved value of that key, as config.resolved.yaml writes it; {{ and }}
/// are braces, and ${NAME} stays as it is. The same configuration gives the same folder, so a run that is resumed finds
/// its own. Throws UserError for a name that is not a key with one value, a value that is not known before the model
/// and the data are read, depends on the number of ranks or on resuming, or cannot be part of a folder's name (a
/// slash). Part of apply_rules, after the rules of the keys.
void name_output(ResolvedConfig& config);

/// The path as a value of output_dir: with its braces doubled.
std::string with_literal_braces(const std::string& path);

}  // namespace hone
