// hone models: what this program trains, generated from the registry of architectures.
#pragma once

#include <string>

#include "core/json_fwd.h"

namespace hone {

/// The support table in Markdown, as it stands in README.md.
std::string models_markdown();
Json models_json();

/// Prints the table for people, or in one of the forms above. Returns the exit code.
int run_models(bool markdown, bool json);

}  // namespace hone
