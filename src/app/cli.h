// The command line: verbs, their options, and how errors end the program.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace hone {

/// Runs the program and returns its exit code (core/error.h). Errors are printed to standard error in a few lines.
int run_command_line(int argc, const char* const* argv);

// What the command lines of several verbs have in common.

/// A verb below `parent`, whose help ends in examples. What it does not know is left in remaining().
CLI::App* add_verb(CLI::App& parent, const char* name, const char* what, const char* examples);

/// --threads
void add_threads(CLI::App* verb, int& threads);
/// --json, for verbs that print their result
void add_json(CLI::App* verb, bool& json);

/// What the parsed command line asks for; gives the exit code.
using Action = std::function<int()>;

/// Adds every verb to `app`; the one that was written sets `action`. `overrides` says which verbs take key=value: what
/// they do not know themselves is left in their remaining().
void add_verbs(CLI::App& app, Action& action);

/// Whether a verb takes configuration overrides (`key=value`, `--key value`) beside its own options.
bool takes_overrides(const std::string& verb);

}  // namespace hone
