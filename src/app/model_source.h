// Models that are planned or looked at: where one comes from (its folder, its config.json alone, or a name), and what
// it consists of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/hf_config.h"
#include "nn/decoder_config.h"
#include "params/parameter_store.h"
#include "session/loaded_model.h"

namespace hone {

struct ModelSource {
  HfConfig config;
  std::filesystem::path directory;  ///< that config.json stands in; empty: a shape that is known by name
  bool has_weights = false;
  std::string known_as = {};  ///< the name of that shape
};

/// The model of a folder (with weights or not), of a config.json, of a Hugging Face id in the local cache, or of a name
/// that `hone bench step` knows; of an id that is not in the cache its last part is such a name. UserError if it is
/// none of them.
ModelSource find_model(const std::string& name);

/// Its decoder and parameters: with the headers of the files where they are there, else from config.json alone.
std::unique_ptr<LoadedModel> planned_model(const ModelSource& source, DType dtype,
                                           const WeightFormat& experts = dense_format());

/// "shape known as 'qwen3-30b-a3b'; its files are not here", or "no weights beside config.json"; empty if all is there.
std::string what_is_missing(const ModelSource& source);

// What a model consists of, counted from its parameters.

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
