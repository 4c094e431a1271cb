// From configuration text to a RunConfig: sections, aliases, conflicts, types, and the rules between keys.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "app/config/config_reader.h"
#include "session/run_config.h"

namespace hone {

// Keys of a configuration that the schema does not have: found all at once, before a value is read.

/// Throws UserError naming every unknown key of both trees with its place and the nearest names, and, where the file is
/// one of another tool, the command that translates it. Keys of other tools that say nothing (`local_rank:`) are passed
/// over; an ambiguous name (batch_size) is answered with its question.
void check_names(const ConfigNode& file, const ConfigNode& overrides);

struct ResolvedConfig {
  RunConfig run;
  std::vector<std::string> notes;             ///< info lines, in the order of the file: aliases, keys without effect
  std::map<std::string, std::string> stated;  ///< canonical name of each key that was stated → where

  bool states(const std::string& name) const { return stated.contains(name); }
};

/// Reads a file and overrides of the command line; "" reads no file. Throws UserError for everything that
/// docs/config.md forbids. `ranks` train together, so the global batch is that of all.
ResolvedConfig load_config(const std::string& path, const std::vector<std::string>& overrides, int64_t ranks = 1);

/// Same, from trees. An override replaces what the file says about its key, and about keys that say the same thing in
/// other units (global_batch_size and gradient_accumulation_steps); of two overrides the later one counts.
ResolvedConfig resolve_config(const ConfigNode& file, const ConfigNode& overrides, int64_t ranks = 1);

/// Throws UserError if one of these keys was not stated.
void require_keys(const ResolvedConfig& config, std::initializer_list<const char*> names);

/// The rules between keys: fills defaults that depend on other keys and refuses contradictions. Part of resolve_config.
void apply_rules(ResolvedConfig& config);

/// One line for each default in which training tools disagree and which was not stated: "weight_decay 0.0". Those that
/// depend on model or data are left out as long as `config.run` has none.
std::vector<std::string> default_lines(const ResolvedConfig& config);

}  // namespace hone
