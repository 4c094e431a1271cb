// Converts configuration text to a RunConfig: sections, aliases, conflicts, types, and rules between keys.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/config_reader.h"
#include "config/rules.h"
#include "config/run_config.h"

namespace hone {

// Unknown keys of a configuration. All are reported at once, before values are read.

/// Throws UserError with every unknown key of both trees, its place and the nearest names, and, if the file belongs to
/// another tool, the command that converts it. Ignores keys of other tools without a value (`local_rank:`). For an
/// ambiguous name (batch_size), the message asks which meaning is intended.
void check_names(const ConfigNode& file, const ConfigNode& overrides);

struct ResolvedConfig {
  RunConfig run;
  std::vector<std::string> notes;             ///< info lines, in the order of the file: aliases, keys without effect
  std::map<std::string, std::string> stated;  ///< canonical name of each stated key → its place

  bool states(const std::string& name) const { return stated.contains(name); }
};

/// The ranks that train together.
struct RanksOfRun {
  int64_t all = 1;
  /// Consecutive ranks on each host; nullopt: all are on one. 0: hosts have different numbers, or other ranks.
  std::optional<int64_t> of_host = {};
};

/// Reads a file ("": none) and overrides of the command line. Throws UserError for everything that docs/config.md
/// forbids. The global batch is the sum over all ranks.
ResolvedConfig load_config(const std::string& path, const std::vector<std::string>& overrides, RanksOfRun ranks = {});

/// The same from trees. An override replaces the file's statements about its key and about keys with the same meaning
/// in other units (global_batch_size and gradient_accumulation_steps); of two overrides the later one is used.
/// `use`: which rules between keys hold.
ResolvedConfig resolve_config(const ConfigNode& file, const ConfigNode& overrides, RanksOfRun ranks = {},
                              RuleUse use = RuleUse::kTraining);

/// Throws UserError at the place of a key, or at its name where it was not stated.
[[noreturn]] void refuse(const ResolvedConfig& config, const std::string& key, const std::string& why,
                         const std::string& instead);

/// Throws UserError if one of the keys was not stated.
void require_keys(const ResolvedConfig& config, std::initializer_list<const char*> names);

/// The rules between keys: fills defaults that depend on other keys and refuses contradictions. Part of resolve_config.
void apply_rules(ResolvedConfig& config, RuleUse use = RuleUse::kTraining);

/// One line for each unstated default that differs between training tools: "weight_decay 0.0". Defaults that depend on
/// model or data are omitted if `config.run` has neither.
std::vector<std::string> default_lines(const ResolvedConfig& config);

}  // namespace hone
