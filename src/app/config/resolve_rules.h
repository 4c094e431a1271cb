// The rules between keys, by subject; apply_rules (resolve.h) runs them in order.
#pragma once

#include <string>

#include "app/config/resolve.h"
#include "app/config/schema.h"

namespace hone {

/// Where a key was stated, or its name.
std::string where(const ResolvedConfig& config, const std::string& name);

/// The key was stated, with something else than null or its default.
bool says_something(const ResolvedConfig& config, const KeySpec& key);

/// The learning rate and its floor, and what the schedule takes besides.
void resolve_rate(ResolvedConfig& config);
/// After resolve_rate: one statement of the warm-up.
void resolve_warmup(ResolvedConfig& config);
/// The data sets, each with its share, columns, prompt and code samples; the template and the tokens.
void resolve_data(ResolvedConfig& config);
/// What is evaluated, when, and what follows from it.
void resolve_evaluation(ResolvedConfig& config);
/// After resolve_evaluation: what is saved and when, and what is resumed.
void resolve_checkpoints(ResolvedConfig& config);

}  // namespace hone
