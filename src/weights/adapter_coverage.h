// Compares what adapter_config.json says is adapted with the tensors of the adapter's files, both ways: PEFT leaves a
// module without tensors as it was initialised, which is no adapter, and ignores tensors of modules that are not
// targets, without an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/text/json_fwd.h"
#include "params/parameter_store.h"

namespace hone {

/// What the files adapt.
struct AdaptedWeights {
  /// Linear weights (with 0), and parts of experts' weights by their first output.
  std::set<std::pair<const Parameter*, int64_t>> parts;
  std::set<std::string> whole;  ///< names of the weights that are saved in full
  bool kt_experts = false;  ///< the experts' tensors are in KTransformers' file, which the configuration is not about
};

/// UserError with the names for targets without tensors, for tensors outside of the targets and for modules_to_save
/// without weights. Targets as PEFT matches them: target_modules (names or an expression) less exclude_modules, in
/// layers_to_transform, and target_parameters. Returns warnings, of experts and routers without any tensor: whether a
/// name like gate_proj means them depends on the version of transformers.
std::vector<std::string> compare_targets(const Json& config, const std::filesystem::path& path,
                                         const ParameterStore& store, const AdaptedWeights& adapted);

}  // namespace hone
