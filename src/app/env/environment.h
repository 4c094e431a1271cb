// hone env, hone version and hone models: print facts about this program and machine, and the supported models.
#pragma once

#include <string>

#include "core/text/json_fwd.h"

namespace hone {

/// Prints version, CPU, instruction sets, the kernels in use, cores, memory, build and devices. Returns 0.
int run_env(bool json);

/// Prints "hone 0.2.0". Returns 0.
int run_version();

/// The support table in Markdown, as in README.md.
std::string models_markdown();
Json models_json();

/// Prints the table as text, Markdown or JSON. Returns the exit code.
int run_models(bool markdown, bool json);

}  // namespace hone
