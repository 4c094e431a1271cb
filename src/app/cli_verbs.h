// The verbs of the command line and their options.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace hone {

/// What the parsed command line asks for; gives the exit code.
using Action = std::function<int()>;

/// Adds every verb to `app`; the one that was written sets `action`. `overrides` says which verbs take key=value: what
/// they do not know themselves is left in their remaining().
void add_verbs(CLI::App& app, Action& action);

/// Whether a verb takes configuration overrides (`key=value`, `--key value`) beside its own options.
bool takes_overrides(const std::string& verb);

}  // namespace hone
