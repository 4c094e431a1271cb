// What a model consists of, counted from its parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/decoder_config.h"
#include "params/parameter_store.h"

namespace hone {

struct GroupCount {
  std::string group;
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t active = 0;  ///< used for one token: of the experts, num_experts_per_tok / num_experts
};

/// Groups in the order of the model; LoRA parameters aside.
std::vector<GroupCount> count_groups(const ParameterStore& store, const MoeConfig& moe);

/// The sum over the groups.
GroupCount total_of(const std::vector<GroupCount>& groups);

/// Parameters that differ in numbers of their names only, as one glob: model.layers.*.self_attn.q_proj.weight.
struct NamePattern {
  std::string glob, group, shape;
  int64_t tensors = 0;
};

/// The names of parameters as patterns, in the order of the model; LoRA parameters aside.
std::vector<NamePattern> name_patterns(const ParameterStore& store);

/// `name` with each part that is a number written as *.
std::string glob_of(const std::string& name);

}  // namespace hone
