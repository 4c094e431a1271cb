// The command line: verbs, their options, and how errors end the program.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hone {

/// Runs the program and returns its exit code (core/base/error.h). Errors are printed to standard error in a few lines.
int run_command_line(int argc, const char* const* argv);

/// Parses the arguments and runs the verb; throws errors. argv[0] is not read.
int run_verb(int argc, const char* const* argv);

/// What a caught exception means to a user.
Error as_error(const std::exception_ptr& exception);

// Helpers for the command lines of verbs.

/// Adds a verb to `parent`, with examples at the end of its help. Unknown arguments remain in remaining().
CLI::App* add_verb(CLI::App& parent, const char* name, const char* what, const char* examples);

/// Adds --threads.
void add_threads(CLI::App* verb, int& threads);
/// Adds an option that names what a verb writes; its help shows OUTPUT. Each is tried in tests/writes_test.cpp.
CLI::Option* add_output(CLI::App* verb, const std::string& name, std::string& path, const std::string& what);
/// Whether an option is from add_output.
bool is_output(const CLI::Option& option);
/// Adds --force.
void add_force(CLI::App* verb, bool& force, const std::string& what = "replace what is there");
/// Adds --tier, which limits the GPU kernels of the process.
void add_tier(CLI::App* verb);
/// Adds --json, for verbs that print their result.
void add_json(CLI::App* verb, bool& json);
/// Whether an argument is key=value.
bool is_override(const std::string& argument);

/// The action of the parsed command line; returns the exit code.
using Action = std::function<int()>;

/// Adds all verbs to `app`. The verb of the command line, whose words are `arguments`, sets `action`.
void add_verbs(CLI::App& app, Action& action, const std::vector<std::string>& arguments);

/// Whether a verb takes configuration overrides (`key=value`, `--key value`) in addition to its own options. They
/// remain in its remaining().
bool takes_overrides(const std::string& verb);

/// Whether a verb has keys as options (app/key_options.h), which may be written as `key=value`, too.
bool takes_keys(const std::string& verb);

/// The arguments after the program's name. `key=value` of a verb that has the key as an option becomes that option, and
/// each override `--key value` as one word, so that its value is not read
/// as CONFIG.
std::vector<std::string> arguments_of(const CLI::App& app, int argc, const char* const* argv);

}  // namespace hone
