// What keys of a run do not go together: one list. Refusals come from it (resolve_config, and the verbs that make a
// run of their own options), and advice obeys it: a setting that Hone suggests or chooses is one that it takes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace hone {

/// Why a run is refused.
struct Refusal {
  std::vector<const char*> keys;  ///< the message names the place of the first that is stated, or else of the first
  std::string why;
  std::string instead;  ///< what to do
};

/// When a rule holds.
enum class RuleUse {
  kAlways,    ///< in training and in inference
  kTraining,  ///< in training alone: inference has the combination
};

struct KeyRule {
  const char* name;  ///< for tests and lists: "experts_device, optimizer_in_backward"
  RuleUse use = RuleUse::kTraining;
  /// The refusal of a run that breaks the rule. What the model must have, such as experts, is for the model to say.
  std::optional<Refusal> (*check)(const RunConfig& run) = nullptr;
};

/// The rules, in the order in which they are checked. Batch numbers and the shard group must be resolved.
std::span<const KeyRule> key_rules();

/// The refusal of the first rule that the run breaks; none if its keys go together.
std::optional<Refusal> find_refusal(const RunConfig& run, RuleUse use = RuleUse::kTraining);

/// Whether the keys of the run go together: what advice and choices may propose.
bool go_together(const RunConfig& run, RuleUse use = RuleUse::kTraining);

}  // namespace hone
