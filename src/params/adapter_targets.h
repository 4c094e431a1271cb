// Which weights get an adapter: the selection of target_modules and target_parameters less that of exclude_modules.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "params/lora.h"

namespace hone {

struct AdapterTargets {
  std::set<Parameter*> linear;
  std::map<Parameter*, std::set<int64_t>> expert_parts;  ///< parts of expert weights, by out_begin
  std::set<Parameter*> fused_experts;

  bool experts() const { return !expert_parts.empty() || !fused_experts.empty(); }
  bool empty() const { return linear.empty() && !experts(); }
};

/// UserError for a target that matches nothing adaptable, for an exclusion that matches nothing (unless
/// exclusions_may_miss), for exclusions that leave nothing or cut through one adapter, and for layers that the model
/// does not have.
AdapterTargets select_targets(ParameterStore& store, const LoraOptions& options);

struct Unmatched {
  std::string entry;
  std::string hint;  ///< " Did you mean 'q_proj'?", or ""
};

/// The entries of exclude_modules that match nothing.
std::vector<Unmatched> unmatched_exclusions(ParameterStore& store, const LoraOptions& options);

}  // namespace hone
