#include "params/parameter_spec.h"

#include "core/base/error.h"

namespace hone {

std::string_view group_of(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kEmbedding:
      return "embedding";
    case ParameterKind::kNorm:
      return "norms";
    case ParameterKind::kBias:
      return "biases";
    case ParameterKind::kAttention:
    case ParameterKind::kAttentionGate:
    case ParameterKind::kRecurrence:
      return "attention";
    case ParameterKind::kMlp:
      return "dense mlp";
    case ParameterKind::kRouter:
      return "router";
    case ParameterKind::kExpertsGateUp:
    case ParameterKind::kExpertsUp:
    case ParameterKind::kExpertsDown:
      return "experts";
    case ParameterKind::kHead:
      return "head";
    case ParameterKind::kLora:
      return "lora";
    case ParameterKind::kBuffer:
      return "buffers";
  }
  HONE_ASSERT(false, "kind out of range");
}

std::vector<FileLayout> ParameterSpec::all_layouts() const {
  std::vector<FileLayout> all = layouts;
  all.push_back({{name, shape, 0, order}});
  return all;
}

std::vector<std::string> ParameterSpec::all_names() const {
  std::vector<std::string> names = {name};
  for (const FileLayout& layout : layouts) {
    for (const FileTensor& tensor : layout) names.push_back(tensor.name);
  }
  return names;
}

MatrixShape ParameterSpec::matrix() const {
  HONE_ASSERT(shape.rank() >= 2, name);
  return {kind == ParameterKind::kExpertsGateUp ? shape[-2] / 2 : shape[-2], shape[-1]};
}

Shape ParameterSpec::stack() const {
  const MatrixShape each = matrix();
  return {shape.numel() / each.numel(), each.rows, each.columns};
}

}  // namespace hone
