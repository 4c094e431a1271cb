// The projections of a fused expert weight, and their names in each expert.
#pragma once

#include <string>
#include <vector>

#include "params/parameter.h"

namespace hone {

/// Whether it is a weight of routed experts: their gate_up or down.
bool is_experts(const Parameter& p);
/// Whether such parameters are operands of the experts' first product.
bool begins_experts(ParameterKind kind);

/// Output rows of every expert: gate_proj and up_proj of a gate_up, up_proj of an up alone, down_proj of a down.
struct ExpertPart {
  std::string name;
  int64_t out_begin, out_count;
};

std::vector<ExpertPart> parts_of(const Parameter& experts);

/// "…mlp.experts" of a fused expert parameter.
std::string experts_module(const Parameter& experts);

/// Whether some file layout has a tensor for each expert and projection. It is then the first.
bool has_expert_files(const Parameter& experts);

/// Names of a tensor per expert and projection: those of files, or <experts>.<e>.<part> if files hold all experts in
/// one tensor.
FileLayout separate_experts(const Parameter& experts);

}  // namespace hone
