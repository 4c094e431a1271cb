// Where the tensors of adapters stand in files: a table of layouts by what is adapted.
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

// One tensor of an adapter's file, as blocks of parameters.

/// counts[0] · counts[1] · counts[2] elements, and the places of each: [i, j, k] stands at
/// begin + i · strides[0] + j · strides[1] + k · strides[2], in the parameter and in the file.
struct AdapterBlock {
  struct Place {
    int64_t begin = 0;
    std::array<int64_t, 3> strides = {0, 0, 1};
  };

  Parameter* parameter = nullptr;
  std::array<int64_t, 3> counts = {1, 1, 1};
  Place in_parameter, in_file;
  float factor = 1;  ///< of the file's values over the parameter's

  /// `count` elements that lie alike in both, the file's first.
  static AdapterBlock run(Parameter& parameter, int64_t begin, int64_t count) {
    return {&parameter, {1, 1, count}, {.begin = begin}, {}};
  }
  int64_t numel() const { return counts[0] * counts[1] * counts[2]; }
};

struct AdapterTensor {
  std::string key;
  std::vector<int64_t> dims;
  std::vector<AdapterBlock> blocks;  ///< elements of the file in none of them are zero
  bool whole = false;                ///< a weight that is saved whole
  /// Of one expert's matrix: KTransformers' tensor of all experts, in which it stands as in the parameter.
  std::string kt_key = {};

  int64_t numel() const;
  /// Of a tensor with the elements of one parameter.
  Parameter& parameter() const { return *blocks.front().parameter; }
  /// Whether the file has a run of the parameter as it lies there.
  bool is_run() const;
};

using ParameterValues = std::function<const float*(const Parameter&)>;

/// The file's values, out of those of whole parameters: where they lie if they are a run, or in `scratch`.
std::span<const float> gather(const AdapterTensor& tensor, const ParameterValues& values, std::vector<float>& scratch);

/// Writes the file's values into the parameter. The blocks hold one run of its elements, in any order.
void scatter(const AdapterTensor& tensor, const std::vector<float>& file_values);

/// The tensors of the store's adapters, and of what is saved whole, as AdapterLayout::kAsTrained has them. Each has the
/// elements of one parameter.
std::vector<AdapterTensor> adapter_tensors(const ParameterStore& store, ExpertNaming names);

/// kt and sglang: servers scale by alpha / r alone.
bool is_for_servers(AdapterLayout layout);

/// The files of a store's adapters in a layout.
class AdapterFiles {
 public:
  /// The store and the options outlive it. Experts that no file holds one by one get target_parameters for split.
  AdapterFiles(const ParameterStore& store, const LoraOptions& lora, AdapterLayout layout);

  AdapterLayout layout() const { return layout_; }
  ExpertNaming names() const;
  /// Whether all experts of the adapter's weight are in one A and B: PEFT's target_parameters.
  bool fuses(const AttachedAdapter& attached) const;
  /// Every rank in the files is twice that of the options.
  bool doubles_ranks() const { return fused_split_ && uniform_; }
  /// Of an adapter in the files. That of a fused gate_up, for both of its parts, is the sum of two ranks, unless
  /// doubles_ranks(); the scaling stays that of the first part.
  AdapterScale scale(const Parameter& adapted, const AttachedAdapter& attached) const;

  std::vector<AdapterTensor> main() const;     ///< of adapter_model.safetensors
  std::vector<AdapterTensor> experts() const;  ///< of kKtFile; none: there is no such file

 private:
  bool comes_first(const Parameter& weight) const;
  void add(const Parameter& weight, std::vector<AdapterTensor>& tensors) const;

  const ParameterStore& store_;
  const LoraOptions& lora_;
  AdapterLayout layout_;
  bool fused_split_ = false;  ///< split adapters are fused
  bool uniform_ = true;       ///< every adapter has the rank and alpha of the options
};

}  // namespace hone
