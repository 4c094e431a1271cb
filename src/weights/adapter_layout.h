// Maps adapters to the tensors of their files: a table of layouts by kind of adapted weight.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "params/adapter.h"
#include "params/expert_parts.h"
#include "params/parameter_store.h"
#include "weights/adapter.h"

namespace hone {

// Names of the tensors in an adapter's files.

inline constexpr const char* kAdapterKeyPrefix = "base_model.model.";

/// Naming of expert keys.
enum class ExpertNaming {
  kFile,       ///< as in the model's files: "base_model.model.….block_sparse_moe.experts.3.w1"
  kCanonical,  ///< by the module in memory: "base_model.model.….mlp.experts.3.gate_proj"
  kServing,    ///< "model.layers.L.mlp.experts.3.gate_proj", and no key has "base_model.model.": SGLang
};

/// Prefix of all keys.
const char* prefix_of(ExpertNaming names);

/// The names under which a full weight is saved: its own, and for a tied embedding also the head's.
std::vector<std::string> whole_names(const ParameterStore& store, const Parameter& whole);

/// "layers.L.experts.gate_lora_a": A (or B) of all experts of a projection in KTransformers'
/// fused_expert_lora.safetensors.
std::string kt_key(const Parameter& experts, const std::string& part, bool a);

/// Its file, next to adapter_model.safetensors.
inline constexpr const char* kKtFile = "fused_expert_lora.safetensors";

/// Names of the modules of a fused weight's per-expert tensors in files.
class ExpertKeys {
 public:
  ExpertKeys(const Parameter& experts, ExpertNaming names);
  /// Module of the part that begins at output row `out_begin`, with the prefix of keys:
  /// "….block_sparse_moe.experts.3.w1". If no model file has per-expert tensors, kFile also returns
  /// "….mlp.experts.3.gate_proj".
  std::string module(int64_t expert, int64_t out_begin) const;
  /// The last part of the module: "w1".
  std::string leaf(int64_t out_begin) const;

 private:
  const Parameter& experts_;
  ExpertNaming naming_;
  std::map<int64_t, std::string> names_;  // names in files, by the first element
};

// A tensor of an adapter's file, as blocks of parameters.

/// counts[0] · counts[1] · counts[2] elements with their positions: [i, j, k] is at begin + i · strides[0] + j ·
/// strides[1] + k · strides[2], in the parameter and in the file.
struct AdapterBlock {
  struct Place {
    int64_t begin = 0;
    std::array<int64_t, 3> strides = {0, 0, 1};
  };

  Parameter* parameter = nullptr;
  std::array<int64_t, 3> counts = {1, 1, 1};
  Place in_parameter, in_file;
  float factor = 1;  ///< file value = factor · parameter value

  /// `count` elements that are contiguous in both, from the beginning of the file's tensor.
  static AdapterBlock run(Parameter& parameter, int64_t begin, int64_t count) {
    return {&parameter, {1, 1, count}, {.begin = begin}, {}};
  }
  int64_t numel() const { return counts[0] * counts[1] * counts[2]; }
};

struct AdapterTensor {
  std::string key;
  std::vector<int64_t> dims;
  std::vector<AdapterBlock> blocks;  ///< file elements outside of all blocks are zero
  bool whole = false;                ///< a weight that is saved in full
  /// For a single expert's matrix: key of KTransformers' tensor of all experts, which has the parameter's layout.
  std::string kt_key = {};

  int64_t numel() const;
  /// The parameter of a tensor with elements of only one.
  Parameter& parameter() const { return *blocks.front().parameter; }
  /// Whether the file has a contiguous run of the parameter's elements.
  bool is_run() const;
};

using ParameterValues = std::function<const float*(const Parameter&)>;

/// The file's values, gathered from full parameters: a view of them if is_run(), else in `scratch`.
std::span<const float> gather(const AdapterTensor& tensor, const ParameterValues& values, std::vector<float>& scratch);

/// Writes the file's values into the parameter. The blocks must cover one contiguous run of its elements, in any order.
void scatter(const AdapterTensor& tensor, const std::vector<float>& file_values);

/// The tensors of the store's adapters and of weights saved in full, in AdapterLayout::kAsTrained. Each has elements of
/// only one parameter.
std::vector<AdapterTensor> adapter_tensors(const ParameterStore& store, ExpertNaming names);

/// kt and sglang: servers always scale by alpha / r.
bool is_for_servers(AdapterLayout layout);

/// The files of a store's adapters in a layout.
class AdapterFiles {
 public:
  /// The store and the options must outlive it. Experts that model files store fused only get target_parameters instead
  /// of split.
  AdapterFiles(const ParameterStore& store, const LoraOptions& lora, AdapterLayout layout);

  AdapterLayout layout() const { return layout_; }
  ExpertNaming names() const;
  /// Whether one A and B hold all experts of the adapter's weight: PEFT's target_parameters.
  bool fuses(const AttachedAdapter& attached) const;
  /// Whether every rank in the files is twice that of the options.
  bool doubles_ranks() const { return joins_parts_ && uniform_; }
  /// Rank and scaling of an adapter in the files. The rank of a fused gate_up is the sum of its two parts' ranks,
  /// unless doubles_ranks(); its scaling is that of the first part.
  AdapterScale scale(const Parameter& adapted, const AttachedAdapter& attached) const;

  std::vector<AdapterTensor> main() const;     ///< tensors of adapter_model.safetensors
  std::vector<AdapterTensor> experts() const;  ///< tensors of kKtFile; empty: no such file

 private:
  bool comes_first(const Parameter& weight) const;
  void add(const Parameter& weight, std::vector<AdapterTensor>& tensors) const;

  const ParameterStore& store_;
  const LoraOptions& lora_;
  AdapterLayout layout_;
  bool fused_split_ = false;  ///< split adapters are written fused
  bool joins_parts_ = false;  ///< among them those of gate and of up, as one
  bool uniform_ = true;       ///< every adapter has the rank and alpha of the options
};

}  // namespace hone
