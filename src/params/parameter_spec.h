// ParameterSpec: what a model says of a parameter, before it has a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tensor.h"
#include "params/file_order.h"

namespace hone {

/// The role of a parameter in the model: defines what `attention`, `all-linear` and the like select.
enum class ParameterKind {
  kEmbedding,
  kNorm,
  kBias,
  kAttention,      ///< a linear weight of attention
  kAttentionGate,  ///< a linear weight that only gates linear attention
  kRecurrence,     ///< convolution, decay, step sizes and skips of linear attention and Mamba-2
  kMlp,            ///< a linear weight of a dense or shared MLP
  kRouter,
  kExpertsGateUp,  ///< [E, 2I, H], gate rows first
  kExpertsUp,      ///< [E, I, H]: the first product of experts without a gate
  kExpertsDown,    ///< [E, H, I]
  kHead,
  kLora,
  kBuffer,  ///< stored and loaded, never trained: the router's e_score_correction_bias
};

/// The row of the start-up table for a kind.
std::string_view group_of(ParameterKind kind);

/// Initial values of a parameter of a new model.
enum class InitialValues {
  kOfKind,  ///< norms ones, biases zeros, others kNormal
  kNormal,  ///< standard deviation `initializer_range`
  kZeros,
  kOnes,
  kLogOfUniform,  ///< logarithms of numbers from 0.01 to 16, so that their exponentials are spread evenly
};

/// One tensor of a file and its elements in the parameter: a contiguous run from `offset`, in some order.
struct FileTensor {
  std::string name;
  Shape shape;         ///< in the parameter; the file's is file_shape(order, shape)
  int64_t offset = 0;  ///< elements from the parameter's start
  FileOrder order = FileOrder::kSame;
};

/// A layout of a parameter in files; its tensors cover every element exactly once.
using FileLayout = std::vector<FileTensor>;

/// Shape of the equal matrices that a parameter consists of.
struct MatrixShape {
  int64_t rows = 0, columns = 0;

  int64_t numel() const { return rows * columns; }
};

struct ParameterSpec {
  std::string name;  ///< canonical: the name in transformers 5
  Shape shape;
  ParameterKind kind = ParameterKind::kAttention;
  int layer = -1;                      ///< -1: outside the layers
  std::vector<FileLayout> layouts;     ///< the canonical name itself is always one; others that files may use
  FileOrder order = FileOrder::kSame;  ///< the order of the tensor with the canonical name
  InitialValues initial = InitialValues::kOfKind;
  bool of_experts = false;  ///< whether it belongs to routed experts, its first dimension: [E, ...]

  /// All layouts in files, the canonical one last.
  std::vector<FileLayout> all_layouts() const;
  /// The canonical name and every name that a file may use for it or for a part of it.
  std::vector<std::string> all_names() const;
  /// The linear maps of a parameter of two or more dimensions: a stack [E, out, in] consists of E, and the gate_up of
  /// experts [E, 2I, H] of 2E, since gate and up are separate maps.
  MatrixShape matrix() const;
  /// These maps, [matrices, rows, columns].
  Shape stack() const;
};

}  // namespace hone
