// Finds models for planning and inspection (a folder, a config.json, or a name), and counts their parameters.
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
  std::filesystem::path directory;  ///< the folder of config.json; empty: a shape that is known by name
  bool has_weights = false;
  std::string known_as = {};  ///< the name of that shape
};

/// Finds the model of a folder (with or without weights), of a config.json, of a name of the Hugging Face hub, or of a
/// name in `hone bench step`'s list; the last part of a hub's name that is not in the cache may be such a name. Of
/// other models of the hub the files without weights are downloaded, if `may_download`. Throws UserError if none
/// matches.
ModelSource find_model(const std::string& name, bool may_download = true);

/// The decoder and parameters of a model, from the headers of its files if they exist, else from config.json only;
/// `vocab_rows` as LoadedModel has it.
std::unique_ptr<LoadedModel> planned_model(const ModelSource& source, DType dtype,
                                           const WeightFormat& experts = dense_format(), int64_t vocab_rows = 0);

/// "shape known as 'qwen3-30b-a3b'; its files are not here", or "no weights beside config.json"; "" if complete.
std::string what_is_missing(const ModelSource& source);

// Counts of a model's parameters.

struct GroupCount {
  std::string group;
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t active = 0;  ///< used per token: num_experts_per_tok / num_experts of the experts' parameters
};

/// Groups in the order of the model, without LoRA parameters.
std::vector<GroupCount> count_groups(const ParameterStore& store, const MoeConfig& moe);

/// The sum over the groups.
GroupCount total_of(const std::vector<GroupCount>& groups);

/// Parameters whose names differ only in numbers, as one glob: model.layers.*.self_attn.q_proj.weight.
struct NamePattern {
  std::string glob, group, shape;
  int64_t tensors = 0;
};

/// The names of parameters as patterns, in the order of the model, without LoRA parameters.
std::vector<NamePattern> name_patterns(const ParameterStore& store);

/// `name` with numeric parts replaced by *.
std::string glob_of(const std::string& name);

}  // namespace hone
