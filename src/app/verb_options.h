// What the command lines of several verbs have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace hone {

/// A verb below `parent`, whose help ends in examples. What it does not know is left in remaining().
CLI::App* add_verb(CLI::App& parent, const char* name, const char* what, const char* examples);

/// --threads
void add_threads(CLI::App* verb, int& threads);
/// --json, for verbs that print their result
void add_json(CLI::App* verb, bool& json);

}  // namespace hone
