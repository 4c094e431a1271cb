// The rules between keys, by subject. apply_rules (resolve.h) runs them in order.
#pragma once

#include <string>

#include "config/resolve.h"
#include "config/schema.h"

namespace hone {

/// The place where a key was stated, or its name.
std::string where(const ResolvedConfig& config, const std::string& name);

/// Whether the key was stated with a value other than null and its default.
bool says_something(const ResolvedConfig& config, const KeySpec& key);

/// Makes revisions a part of the names of models and data sets. UserError for a path's, and for two different ones.
void resolve_revisions(ResolvedConfig& config);
/// Resolves the learning rate, its floor and the other parameters of the schedule.
void resolve_rate(ResolvedConfig& config);
/// Resolves the warm-up, which may be stated in several units. Call it after resolve_rate.
void resolve_warmup(ResolvedConfig& config);
/// Resolves the data sets with their weights, columns, prompts and code samples, the template and the tokens.
void resolve_data(ResolvedConfig& config);
/// Resolves what is evaluated and when, and keys that depend on it.
void resolve_evaluation(ResolvedConfig& config);
/// Resolves what is saved and when, and what is resumed. Call it after resolve_evaluation.
void resolve_checkpoints(ResolvedConfig& config);

}  // namespace hone
