// Writing PEFT adapters, and turning one parameterisation of expert LoRA into the other.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "weights/adapter.h"
#include "weights/adapter_keys.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"

namespace hone {

namespace {

/// A tensor of the file with its values.
struct FileMatrix {
  std::string key;
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
  bool is_vector = false;  ///< has one dimension, rows

  std::vector<int64_t> dims() const {
    if (is_vector) return {rows};
    return {rows, columns};
  }
};

const Parameter& lora_a(const AttachedAdapter& attached) {
  return *static_cast<const Parameter*>(attached.adapter.lora_a);
}
const Parameter& lora_b(const AttachedAdapter& attached) {
  return *static_cast<const Parameter*>(attached.adapter.lora_b);
}

FileMatrix as_it_is(const AdapterTensor& tensor, HostParameters& values) {
  return {tensor.key, tensor.rows, tensor.columns, gather_adapter_tensor(tensor, values[*tensor.parameter]),
          tensor.dims().size() == 1};
}

std::vector<FileMatrix> as_parameterised(const ParameterStore& store, HostParameters& values) {
  std::vector<FileMatrix> matrices;
  for (const AdapterTensor& tensor : adapter_tensors(store, false)) matrices.push_back(as_it_is(tensor, values));
  return matrices;
}

/// Shared → split: each projection of each expert gets the shared A and its rows of B.
void split_shared(const Parameter& p, const AttachedAdapter& attached, HostParameters& values,
                  std::vector<FileMatrix>& matrices) {
  const Parameter &a = lora_a(attached), &b = lora_b(attached);
  const int64_t experts = a.shape()[0], r = a.shape()[1], in = a.shape()[2], out = b.shape()[1];
  const int64_t parts = p.kind() == ParameterKind::kExpertsGateUp ? 2 : 1, rows = out / parts;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t part = 0; part < parts; ++part) {
      const std::string module = kAdapterKeyPrefix + file_expert_module(p, e, part * rows);
      const float* from_a = values[a] + e * r * in;
      const float* from_b = values[b] + (e * out + part * rows) * r;
      matrices.push_back({module + ".lora_A.weight", r, in, {from_a, from_a + r * in}});
      matrices.push_back({module + ".lora_B.weight", rows, r, {from_b, from_b + rows * r}});
    }
  }
}

std::vector<FileMatrix> as_split(const ParameterStore& store, HostParameters& values) {
  std::vector<FileMatrix> matrices;
  std::set<const Parameter*> shared;
  for (const Parameter& p : store.all()) {
    for (const AttachedAdapter& attached : p.adapters()) {
      if (!attached.shared) continue;
      split_shared(p, attached, values, matrices);
      shared.insert({&lora_a(attached), &lora_b(attached)});
    }
  }
  for (const AdapterTensor& tensor : adapter_tensors(store, false)) {
    if (!shared.contains(tensor.parameter)) matrices.push_back(as_it_is(tensor, values));
  }
  return matrices;
}

/// A dense pair with rank 2r: the added rows of A and columns of B are zero.
FileMatrix padded(const AdapterTensor& tensor, int64_t r, HostParameters& parameters) {
  const std::vector<float> values = gather_adapter_tensor(tensor, parameters[*tensor.parameter]);
  const bool is_a = tensor.key.ends_with(".lora_A.weight");
  FileMatrix matrix{tensor.key, is_a ? 2 * r : tensor.rows, is_a ? tensor.columns : 2 * r, {}};
  matrix.values.assign(static_cast<size_t>(matrix.rows * matrix.columns), 0.0f);
  for (int64_t i = 0; i < tensor.rows; ++i) {
    for (int64_t j = 0; j < tensor.columns; ++j) {
      matrix.values[static_cast<size_t>(i * matrix.columns + j)] = values[static_cast<size_t>(i * tensor.columns + j)];
    }
  }
  return matrix;
}

/// Split → shared with rank 2r: the A of gate and of up below one another, B block-diagonal; a part without an adapter,
/// and the second half of down, are zero. Rows of B are in the file's order.
void fuse_split(const Parameter& p, int64_t r, const std::string& module, HostParameters& values,
                std::vector<FileMatrix>& matrices) {
  const int64_t experts = p.shape()[0], out = p.shape()[1], in = p.shape()[2], rank = 2 * r;
  FileMatrix a{module + ".lora_A.weight", rank * experts, in,
               std::vector<float>(static_cast<size_t>(rank * experts * in))};
  FileMatrix b{module + ".lora_B.weight", out, rank * experts,
               std::vector<float>(static_cast<size_t>(out * rank * experts))};
  const MatrixOrder order(p.order(), p.shape());
  for (const AttachedAdapter& attached : p.adapters()) {
    const float* from_a = values[lora_a(attached)];
    const float* from_b = values[lora_b(attached)];
    const int64_t first = attached.out_begin > 0 ? r : 0;
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t rho = 0; rho < r; ++rho) {
        for (int64_t i = 0; i < in; ++i) {
          a.values[static_cast<size_t>((e * rank + first + rho) * in + i)] = from_a[(e * r + rho) * in + i];
        }
        for (int64_t o = 0; o < attached.out_count; ++o) {
          const int64_t row = order.file_output(attached.out_begin + o), column = (first + rho) * experts + e;
          b.values[static_cast<size_t>(row * rank * experts + column)] = from_b[(e * attached.out_count + o) * r + rho];
        }
      }
    }
  }
  matrices.push_back(std::move(a));
  matrices.push_back(std::move(b));
}

std::vector<FileMatrix> as_target_parameters(const ParameterStore& store, int64_t r, HostParameters& values) {
  std::vector<FileMatrix> matrices;
  std::map<std::string, int> adapted;  // experts module -> fused weights with adapters
  for (const Parameter& p : store.all()) {
    if (is_experts(p) && !p.adapters().empty()) ++adapted[experts_module(p)];
  }
  for (const Parameter& p : store.all()) {
    if (!is_experts(p) || p.adapters().empty()) continue;
    const bool inner = p.kind() == ParameterKind::kExpertsGateUp && adapted[experts_module(p)] == 2;
    fuse_split(p, r, kAdapterKeyPrefix + experts_module(p) + (inner ? ".base_layer" : ""), values, matrices);
  }
  for (const AdapterTensor& tensor : adapter_tensors(store, false)) {
    if (tensor.form == AdapterTensor::Form::kWhole) {
      matrices.push_back(as_it_is(tensor, values));
    } else if (tensor.parameter->shape().rank() == 2) {
      matrices.push_back(padded(tensor, r, values));
    }
  }
  return matrices;
}

/// What target_modules, target_parameters and modules_to_save of the config must say for these tensors.
struct Targets {
  std::set<std::string> modules, parameters, saved;
};

Targets targets_of(const ParameterStore& store, bool shared_experts) {
  Targets targets;
  for (const Parameter& p : store.all()) {
    for (const AttachedAdapter& attached : p.adapters()) {
      if (!is_experts(p)) {
        targets.modules.insert(attached.target);
      } else if (shared_experts) {
        targets.parameters.insert("experts." + p.name().substr(p.name().rfind('.') + 1));
      } else {
        const int64_t parts = attached.shared && p.kind() == ParameterKind::kExpertsGateUp ? 2 : 1;
        for (int64_t part = 0; part < parts; ++part) {
          const std::string module = file_expert_module(p, 0, attached.out_begin + part * attached.out_count / parts);
          targets.modules.insert(module.substr(module.rfind('.') + 1));
        }
      }
    }
    if (p.kind() == ParameterKind::kRouter && p.trainable()) {
      const std::string module = p.name().substr(0, p.name().rfind('.'));  // …mlp.gate
      const size_t parent = module.rfind('.', module.rfind('.') - 1);
      targets.saved.insert(module.substr(parent + 1));
    }
  }
  return targets;
}

}  // namespace

void save_adapter(const std::filesystem::path& directory, const ParameterStore& store,
                  const AdapterSaveOptions& options) {
  bool any_shared = false, any_split = false, fused_files = false;
  for (const Parameter& p : store.all()) {
    if (!is_experts(p)) continue;
    for (const AttachedAdapter& attached : p.adapters()) (attached.shared ? any_shared : any_split) = true;
    fused_files |= !p.adapters().empty() && !has_expert_files(p);
  }
  const AdapterLayout layout = fused_files ? AdapterLayout::kTargetParameters : options.layout;
  const bool fuse = any_split && !any_shared && layout == AdapterLayout::kTargetParameters;
  const bool split = any_shared && layout == AdapterLayout::kSplit;
  const LoraOptions& lora = options.lora;
  HostParameters values;
  const std::vector<FileMatrix> matrices = fuse    ? as_target_parameters(store, lora.r, values)
                                           : split ? as_split(store, values)
                                                   : as_parameterised(store, values);
  const Targets targets = targets_of(store, (any_shared && !split) || fuse);

  Json config = Json::object();
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = options.base_model.empty() ? Json(nullptr) : Json(options.base_model);
  config["peft_version"] = "0.21.0";  // the layout of target_parameters that this file has
  config["r"] = fuse ? 2 * lora.r : lora.r;
  config["lora_alpha"] = fuse ? lora.alpha * (lora.use_rslora ? std::sqrt(2.0) : 2.0) : lora.alpha;
  config["lora_dropout"] = lora.dropout;
  config["use_rslora"] = lora.use_rslora;
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  config["target_modules"] = targets.modules;
  config["target_parameters"] = targets.parameters.empty() ? Json(nullptr) : Json(targets.parameters);
  config["modules_to_save"] = targets.saved.empty() ? Json(nullptr) : Json(targets.saved);

  std::vector<SafetensorsWriter::Announced> announced;
  for (const FileMatrix& matrix : matrices) announced.push_back({matrix.key, DType::kF32, matrix.dims()});
  SafetensorsWriter writer(directory / "adapter_model.safetensors", std::move(announced));
  for (const FileMatrix& matrix : matrices)
    writer.write_floats(DType::kF32, matrix.values.data(), matrix.rows * matrix.columns);
  writer.finish();
  write_text_file(directory / "adapter_config.json", config.dump(2) + "\n");
}

}  // namespace hone
