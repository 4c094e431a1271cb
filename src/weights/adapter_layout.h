// Where the tensors of adapters stand in files: a table of layouts by what is adapted.
#pragma once

#include <string>
#include <vector>

#include "params/adapter.h"
#include "weights/adapter.h"
#include "weights/adapter_keys.h"
#include "weights/adapter_tensor.h"

namespace hone {

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
