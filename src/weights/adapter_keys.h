// Names of the tensors in an adapter's files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "params/expert_parts.h"
#include "params/parameter_store.h"

namespace hone {

inline constexpr const char* kAdapterKeyPrefix = "base_model.model.";

/// How the keys of experts are written.
enum class ExpertNaming {
  kFile,       ///< as the model's files name experts: "base_model.model.….block_sparse_moe.experts.3.w1"
  kCanonical,  ///< by their module in memory: "base_model.model.….mlp.experts.3.gate_proj"
  kServing,    ///< the same without "base_model.model.", and so all other keys: SGLang
};

/// What all keys begin with.
const char* prefix_of(ExpertNaming names);

/// The names under which a weight is saved whole: its own, and the head's of an embedding that is tied to it.
std::vector<std::string> whole_names(const ParameterStore& store, const Parameter& whole);

/// "layers.L.experts.gate_lora_a": all experts' A (or B) of a projection, as KTransformers has them in
/// fused_expert_lora.safetensors.
std::string kt_key(const Parameter& experts, const std::string& part, bool a);

/// The file they are in, beside adapter_model.safetensors.
inline constexpr const char* kKtFile = "fused_expert_lora.safetensors";

/// The modules that a file's per-expert tensors of a fused weight belong to.
class ExpertKeys {
 public:
  ExpertKeys(const Parameter& experts, ExpertNaming names);
  /// Of the part that begins at an output row, with the prefix of keys: "….block_sparse_moe.experts.3.w1". Where no
  /// file has such tensors, by kFile too, "….mlp.experts.3.gate_proj".
  std::string module(int64_t expert, int64_t out_begin) const;
  /// The last part of that: "w1".
  std::string leaf(int64_t out_begin) const;

 private:
  const Parameter& experts_;
  ExpertNaming naming_;
  std::map<int64_t, std::string> names_;  // in files, by the first element
};

}  // namespace hone
