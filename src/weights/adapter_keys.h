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

  /// Its shape in the file; a bias that is saved whole has one dimension.
  std::vector<int64_t> dims() const {
    if (parameter->shape().rank() == 1) return {rows};
    return {rows, columns};
  }
};

inline constexpr const char* kAdapterKeyPrefix = "base_model.model.";

/// The tensors a file of this store's adapters has, expert adapters as they are parameterised in memory. `canonical`
/// names experts by their in-memory module instead of the names files use.
std::vector<AdapterTensor> adapter_tensors(const ParameterStore& store, bool canonical);

/// The names under which a weight is saved whole: its own, and the head's of an embedding that is tied to it.
std::vector<std::string> whole_names(const ParameterStore& store, const Parameter& whole);

/// Writes the values of a file tensor into the parameter.
void scatter_adapter_tensor(const AdapterTensor& tensor, const std::vector<float>& file_values);
/// The values of a file tensor, out of host values of the parameter (or of its gradient).
std::vector<float> gather_adapter_tensor(const AdapterTensor& tensor, const float* parameter_values);

/// Float32 values of parameters in host memory. Those on a device are read whole, since an adapter of many experts has
/// many small tensors; the copies of the last few are kept, and their memory is used again.
class HostParameters {
 public:
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
  std::list<Copy> copies_;  // used last comes first
};

/// The modules that a file's per-expert tensors of a fused weight belong to.
class FileExpertModules {
 public:
  explicit FileExpertModules(const Parameter& experts);
  /// Of the part that begins at an output row: "…block_sparse_moe.experts.3.w1"; where no file has such tensors,
  /// "…mlp.experts.3.gate_proj".
  const std::string& name(int64_t expert, int64_t out_begin) const;

 private:
  const Parameter& experts_;
  std::map<int64_t, std::string> names_;  // by the first element
};

}  // namespace hone
