// How the tensors of an adapter file lie in the LoRA parameters.
#pragma once

#include <future>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "params/expert_parts.h"
#include "params/parameter_store.h"
#include "weights/adapter.h"

namespace hone {

/// One tensor of an adapter file, element by element: file index (i, j) of a matrix [rows, columns] stands at
/// parameter element `offset + expert(…)…`, as its form says.
struct AdapterTensor {
  enum class Form {
    kMatrix,       ///< contiguous: a dense A or B, or one expert's
    kExpertOuter,  ///< A of target_parameters [r·E, in]: contiguous as [E, r, in]
    kExpertInner,  ///< B of target_parameters [out, r·E]: element (o, ρ·E + e) is [e, o, ρ], o in the file's order
    kWhole,        ///< a weight that is saved whole
  };
  std::string key;  ///< with base_model.model.
  int64_t rows = 0, columns = 0;
  Form form = Form::kMatrix;
  Parameter* parameter = nullptr;
  int64_t offset = 0;                  ///< elements, for kMatrix
  const Parameter* adapted = nullptr;  ///< the weight whose order of outputs B has, for kExpertInner
  /// Of one expert's matrix: KTransformers' tensor of all experts, in which it stands at `offset` too.
  std::string kt_key = {};

  /// Its shape in the file; a bias that is saved whole has one dimension.
  std::vector<int64_t> dims() const {
    if (parameter->shape().rank() == 1) return {rows};
    return {rows, columns};
  }
};

inline constexpr const char* kAdapterKeyPrefix = "base_model.model.";
/// Of DoRA's magnitudes, after the module; A and B have .lora_A.weight and .lora_B.weight.
inline constexpr const char* kMagnitudeSuffix = ".lora_magnitude_vector";

/// How the keys of experts are written.
enum class ExpertNaming {
  kFile,       ///< as the model's files name experts: "base_model.model.….block_sparse_moe.experts.3.w1"
  kCanonical,  ///< by their module in memory: "base_model.model.….mlp.experts.3.gate_proj"
  kServing,    ///< the same without "base_model.model.", and so all other keys: SGLang
};

/// The tensors a file of this store's adapters has, expert adapters as they are parameterised in memory.
std::vector<AdapterTensor> adapter_tensors(const ParameterStore& store, ExpertNaming names);

/// The names under which a weight is saved whole: its own, and the head's of an embedding that is tied to it.
std::vector<std::string> whole_names(const ParameterStore& store, const Parameter& whole);

/// "layers.L.experts.gate_lora_a": all experts' A (or B) of a projection, as KTransformers has them in
/// fused_expert_lora.safetensors.
std::string kt_key(const Parameter& experts, const std::string& part, bool a);

/// The file they are in, beside adapter_model.safetensors.
inline constexpr const char* kKtFile = "fused_expert_lora.safetensors";

/// Writes the values of a file tensor into the parameter.
void scatter_adapter_tensor(const AdapterTensor& tensor, const std::vector<float>& file_values);
/// The values of a file tensor, out of host values of the parameter (or of its gradient).
std::vector<float> gather_adapter_tensor(const AdapterTensor& tensor, const float* parameter_values);

/// Float32 values of parameters in host memory. Those on a device or on several ranks are read whole, since an adapter
/// of many experts has many small tensors; the copies of the last few are kept, and their memory is used again.
class HostParameters {
 public:
  /// `reader` reads values that ranks keep parts of; null: there are none.
  explicit HostParameters(StateReader* reader = nullptr) : reader_(reader) {}

  /// The exact values, in the parameter's shape, until kKept other parameters have been asked for.
  const float* operator[](const Parameter& parameter);
  /// Begins to read what will be asked for next, beside what the caller does meanwhile.
  void prefetch(const Parameter& parameter);

 private:
  static constexpr size_t kKept = 8;
  struct Copy {
    const Parameter* parameter = nullptr;
    std::vector<float> values;
    std::future<void> read;  // of a copy that has not been asked for yet
  };
  /// Begins to read a parameter, unless that has begun, and puts its copy first.
  Copy& copy_of(const Parameter& parameter);

  StateReader* reader_;
  std::list<Copy> copies_;  // used last comes first
};

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
