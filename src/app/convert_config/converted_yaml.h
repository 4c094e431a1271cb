// The text of a translated configuration.
#pragma once

#include <string>

#include "app/convert_config/translation.h"

namespace hone {

/// run.yaml: keys by group with what they were called, then as comments what is to be looked at, what has no effect and
/// why, and what was left out. `source` and the devices of its batch are named at the top. Variables of a script stay
/// variables, or plain text (`$${NAME}`) unless `expand`.
std::string converted_yaml(const Translation& translation, const Tool& tool, const std::string& source, int64_t devices,
                           bool expand = true);

}  // namespace hone
