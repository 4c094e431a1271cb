// Writing PEFT adapters, and turning one parameterisation of expert LoRA into the other.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "core/error.h"
#include "weights/adapter.h"
#include "weights/adapter_config.h"
#include "weights/adapter_keys.h"
#include "weights/checkpoint.h"
#include "weights/finite.h"
#include "weights/safetensors.h"

namespace hone {

namespace {

/// A tensor of the file. Its values are made when its turn to be written comes: those of many experts are more than a
/// host should hold at once.
struct FileMatrix {
  std::string key;
  int64_t rows = 0, columns = 0;
  std::vector<const Parameter*> from;
  /// [rows, columns], in the parameter's host memory or in `scratch`.
  std::function<std::span<const float>(HostParameters& values, std::vector<float>& scratch)> make;

  bool is_vector = false;  ///< has one dimension, rows
  int64_t experts = 0;     ///< of a tensor of all experts: [experts, rows, columns]

  int64_t numel() const { return std::max<int64_t>(experts, 1) * rows * columns; }
  std::vector<int64_t> dims() const {
    if (experts > 0) return {experts, rows, columns};
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

/// `count` values from `offset` on, as they lie in the parameter.
auto slice_of(const Parameter& parameter, int64_t offset, int64_t count) {
  return [&parameter, offset, count](HostParameters& values, std::vector<float>&) {
    return std::span(values[parameter] + offset, static_cast<size_t>(count));
  };
}

FileMatrix as_it_is(const AdapterTensor& tensor) {
  FileMatrix matrix{tensor.key, tensor.rows, tensor.columns, {tensor.parameter}, {}, tensor.dims().size() == 1};
  if (tensor.form != AdapterTensor::Form::kExpertInner) {
    matrix.make = slice_of(*tensor.parameter, tensor.offset, matrix.numel());
  } else {
    matrix.make = [tensor](HostParameters& values, std::vector<float>& scratch) -> std::span<const float> {
      return scratch = gather_adapter_tensor(tensor, values[*tensor.parameter]);
    };
  }
  return matrix;
}

std::vector<FileMatrix> as_parameterised(const ParameterStore& store) {
  std::vector<FileMatrix> matrices;
  for (const AdapterTensor& tensor : adapter_tensors(store, ExpertNaming::kFile)) matrices.push_back(as_it_is(tensor));
  return matrices;
}

/// Shared → split: each projection of each expert gets the shared A and its rows of B.
void split_shared(const Parameter& p, const AttachedAdapter& attached, ExpertNaming names,
                  std::vector<FileMatrix>& matrices) {
  const Parameter &a = lora_a(attached), &b = lora_b(attached);
  const int64_t experts = a.shape()[0], r = a.shape()[1], in = a.shape()[2], out = b.shape()[1];
  const ExpertKeys keys(p, names);
  for (int64_t e = 0; e < experts; ++e) {
    for (const ExpertPart& part : parts_of(p)) {
      const std::string module = keys.module(e, part.out_begin);
      const int64_t rows = part.out_count;
      matrices.push_back({module + ".lora_A.weight", r, in, {&a}, slice_of(a, e * r * in, r * in)});
      matrices.push_back(
          {module + ".lora_B.weight", rows, r, {&b}, slice_of(b, (e * out + part.out_begin) * r, rows * r)});
    }
  }
}

std::vector<FileMatrix> as_split(const ParameterStore& store, ExpertNaming names) {
  std::vector<FileMatrix> matrices;
  std::set<const Parameter*> shared;
  for (const Parameter& p : store.all()) {
    for (const AttachedAdapter& attached : p.adapters()) {
      if (!attached.shared) continue;
      split_shared(p, attached, names, matrices);
      shared.insert({&lora_a(attached), &lora_b(attached)});
    }
  }
  for (const AdapterTensor& tensor : adapter_tensors(store, names)) {
    if (!shared.contains(tensor.parameter)) matrices.push_back(as_it_is(tensor));
  }
  return matrices;
}

/// The adapter of a fused weight that covers a projection; null without.
const AttachedAdapter* adapter_of(const Parameter& p, const ExpertPart& part) {
  for (const AttachedAdapter& attached : p.adapters()) {
    if (attached.shared || attached.out_begin == part.out_begin) return &attached;
  }
  return nullptr;
}

void add_kt_part(const Parameter& p, const ExpertPart& part, int64_t r, std::vector<FileMatrix>& matrices) {
  const int64_t experts = p.shape()[0], in = p.shape()[2], rows = part.out_count;
  FileMatrix a{kt_key(p, part.name, true), r, in, {}, {}}, b{kt_key(p, part.name, false), rows, r, {}, {}};
  a.experts = b.experts = experts;
  if (const AttachedAdapter* attached = adapter_of(p, part)) {
    const Parameter &from_a = lora_a(*attached), &from_b = lora_b(*attached);
    const int64_t out = attached->out_count, first = part.out_begin - attached->out_begin;
    a.from = {&from_a};
    b.from = {&from_b};
    a.make = slice_of(from_a, 0, from_a.shape().numel());
    b.make = [=, &from_b](HostParameters& values, std::vector<float>& scratch) -> std::span<const float> {
      scratch.resize(static_cast<size_t>(experts * rows * r));
      for (int64_t e = 0; e < experts; ++e) {
        std::copy_n(values[from_b] + (e * out + first) * r, rows * r, scratch.begin() + e * rows * r);
      }
      return scratch;
    };
  } else {
    for (FileMatrix* matrix : {&a, &b}) {
      matrix->make = [numel = matrix->numel()](HostParameters&, std::vector<float>& scratch) -> std::span<const float> {
        scratch.assign(static_cast<size_t>(numel), 0.0f);
        return scratch;
      };
    }
  }
  matrices.push_back(std::move(a));
  matrices.push_back(std::move(b));
}

std::vector<FileMatrix> as_kt_experts(const ParameterStore& store, int64_t r) {
  std::vector<FileMatrix> matrices;
  std::set<std::string> adapted;  // experts modules
  for (const Parameter& p : store.all()) {
    if (is_experts(p) && !p.adapters().empty()) adapted.insert(experts_module(p));
  }
  for (const Parameter& p : store.all()) {
    if (!is_experts(p) || !adapted.contains(experts_module(p))) continue;
    for (const ExpertPart& part : parts_of(p)) add_kt_part(p, part, r, matrices);
  }
  return matrices;
}

std::vector<FileMatrix> beside_experts(const ParameterStore& store) {
  std::vector<FileMatrix> matrices;
  for (const AdapterTensor& tensor : adapter_tensors(store, ExpertNaming::kFile)) {
    if (tensor.parameter->shape().rank() < 3) matrices.push_back(as_it_is(tensor));
  }
  return matrices;
}

AdapterScale scale_of(const AttachedAdapter& attached) { return {lora_a(attached).shape()[-2], attached.alpha}; }

/// Ranks and alphas of a file in which split expert adapters are fused: B of the fused gate_up is block-diagonal, so
/// its rank is the sum of two. Where all adapters have the rank r, every one gets 2r and the file needs no patterns.
class FusedScales {
 public:
  FusedScales(const ParameterStore& store, const LoraOptions& lora) : lora_(lora) {
    for (const Parameter& p : store.all()) {
      for (const AttachedAdapter& attached : p.adapters())
        uniform_ &= scale_of(attached) == AdapterScale{lora.r, lora.alpha};
    }
  }

  bool uniform() const { return uniform_; }

  AdapterScale of(const Parameter& adapted) const {
    const std::vector<AttachedAdapter>& adapters = adapted.adapters();
    AdapterScale scale = scale_of(adapters.front());
    int64_t rank = 0;
    for (const AttachedAdapter& attached : adapters) rank += scale_of(attached).rank;
    if (uniform_) rank = 2 * lora_.r;
    // The scaling stays that of the first part.
    const double growth = static_cast<double>(rank) / static_cast<double>(scale.rank);
    return {rank, scale.alpha * (lora_.use_rslora ? std::sqrt(growth) : growth)};
  }

 private:
  const LoraOptions& lora_;
  bool uniform_ = true;
};

/// A dense pair with a larger rank: the added rows of A and columns of B are zero.
FileMatrix padded(const AdapterTensor& tensor, int64_t rank) {
  const bool is_a = tensor.key.ends_with(".lora_A.weight");
  FileMatrix matrix{tensor.key, is_a ? rank : tensor.rows, is_a ? tensor.columns : rank, {tensor.parameter}, {}};
  matrix.make = [tensor, columns = matrix.columns, numel = matrix.numel()](
                    HostParameters& parameters, std::vector<float>& scratch) -> std::span<const float> {
    const float* values = parameters[*tensor.parameter] + tensor.offset;
    scratch.assign(static_cast<size_t>(numel), 0.0f);
    for (int64_t i = 0; i < tensor.rows; ++i) {
      std::copy_n(values + i * tensor.columns, tensor.columns, scratch.begin() + i * columns);
    }
    return scratch;
  };
  return matrix;
}

/// Where a part of an expert weight stands in the fused adapter.
struct FusedPart {
  const AttachedAdapter* attached;
  int64_t first;  ///< rank from which on it stands
  float factor;   ///< its scaling over that of the whole, folded into B
};

/// Split → shared: the A of gate and of up below one another, B block-diagonal; the ranks that are left (of a part
/// without an adapter, of down) are zero. Rows of B are in the file's order.
void fuse_split(const Parameter& p, int64_t rank, const std::string& module, std::vector<FileMatrix>& matrices) {
  const int64_t experts = p.shape()[0], out = p.shape()[1], in = p.shape()[2];
  FileMatrix a{module + ".lora_A.weight", rank * experts, in, {}, {}},
      b{module + ".lora_B.weight", out, rank * experts, {}, {}};
  std::vector<FusedPart> parts;
  int64_t first = 0;
  for (const AttachedAdapter& attached : p.adapters()) {
    a.from.push_back(&lora_a(attached));
    b.from.push_back(&lora_b(attached));
    parts.push_back({&attached, first, attached.adapter.scaling / p.adapters().front().adapter.scaling});
    first += scale_of(attached).rank;
  }
  a.make = [=](HostParameters& values, std::vector<float>& scratch) -> std::span<const float> {
    scratch.assign(static_cast<size_t>(rank * experts * in), 0.0f);
    for (const FusedPart& part : parts) {
      const float* from = values[lora_a(*part.attached)];
      const int64_t r = scale_of(*part.attached).rank;
      for (int64_t e = 0; e < experts; ++e) {
        std::copy_n(from + e * r * in, r * in, scratch.begin() + (e * rank + part.first) * in);
      }
    }
    return scratch;
  };
  b.make = [=, &p](HostParameters& values, std::vector<float>& scratch) -> std::span<const float> {
    scratch.assign(static_cast<size_t>(out * rank * experts), 0.0f);
    const MatrixOrder order(p.order(), p.shape());
    for (const FusedPart& part : parts) {
      const AttachedAdapter& attached = *part.attached;
      const float* from = values[lora_b(attached)];
      const int64_t count = attached.out_count, r = scale_of(attached).rank;
      for (int64_t e = 0; e < experts; ++e) {
        for (int64_t o = 0; o < count; ++o) {
          for (int64_t rho = 0; rho < r; ++rho) {
            const int64_t row = order.file_output(attached.out_begin + o), column = (part.first + rho) * experts + e;
            scratch[static_cast<size_t>(row * rank * experts + column)] = part.factor * from[(e * count + o) * r + rho];
          }
        }
      }
    }
    return scratch;
  };
  matrices.push_back(std::move(a));
  matrices.push_back(std::move(b));
}

std::vector<FileMatrix> as_target_parameters(const ParameterStore& store, const FusedScales& scales) {
  std::vector<FileMatrix> matrices;
  std::map<std::string, int> adapted;              // experts module -> fused weights with adapters
  std::map<const Parameter*, int64_t> dense_rank;  // by A or B
  for (const Parameter& p : store.all()) {
    if (p.adapters().empty()) continue;
    if (is_experts(p)) {
      ++adapted[experts_module(p)];
    } else {
      dense_rank[&lora_a(p.adapters().front())] = dense_rank[&lora_b(p.adapters().front())] = scales.of(p).rank;
    }
  }
  for (const Parameter& p : store.all()) {
    if (!is_experts(p) || p.adapters().empty()) continue;
    const bool inner = p.kind() == ParameterKind::kExpertsGateUp && adapted[experts_module(p)] == 2;
    fuse_split(p, scales.of(p).rank, kAdapterKeyPrefix + experts_module(p) + (inner ? ".base_layer" : ""), matrices);
  }
  for (const AdapterTensor& tensor : adapter_tensors(store, ExpertNaming::kFile)) {
    if (tensor.form == AdapterTensor::Form::kWhole) {
      matrices.push_back(as_it_is(tensor));
    } else if (const auto dense = dense_rank.find(tensor.parameter); dense != dense_rank.end()) {
      matrices.push_back(padded(tensor, dense->second));
    }
  }
  return matrices;
}

/// Parameters in the order in which the matrices read them first.
std::vector<const Parameter*> order_of_reading(const std::vector<FileMatrix>& matrices) {
  std::vector<const Parameter*> order;
  std::set<const Parameter*> known;
  for (const FileMatrix& matrix : matrices) {
    for (const Parameter* parameter : matrix.from) {
      if (known.insert(parameter).second) order.push_back(parameter);
    }
  }
  return order;
}

/// Writes each matrix while the parameters of the next ones are read.
void write_matrices(SafetensorsWriter& writer, const std::vector<FileMatrix>& matrices,
                    const AdapterSaveOptions& options) {
  constexpr size_t kAhead = 2;  // the next A and B
  const std::vector<const Parameter*> order = order_of_reading(matrices);
  std::map<const Parameter*, size_t> place;
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  HostParameters values(options.reader);
  std::vector<float> scratch;
  size_t asked_for = 0;
  for (const FileMatrix& matrix : matrices) {
    const std::span<const float> made = matrix.make(values, scratch);
    HONE_ASSERT(static_cast<int64_t>(made.size()) == matrix.numel(), matrix.key);
    if (options.finite) require_finite(matrix.key, DType::kF32, std::as_bytes(made).data(), matrix.numel());
    const size_t most = matrix.from.empty() ? 0 : std::min(order.size(), place[matrix.from.back()] + 1 + kAhead);
    for (; asked_for < most; ++asked_for) values.prefetch(*order[asked_for]);
    writer.write(made.data(), made.size_bytes());
  }
}

void write_file(const std::filesystem::path& path, const std::vector<FileMatrix>& matrices,
                const AdapterSaveOptions& options) {
  std::vector<SafetensorsWriter::Announced> announced;
  for (const FileMatrix& matrix : matrices) announced.push_back({matrix.key, DType::kF32, matrix.dims()});
  SafetensorsWriter writer(path, std::move(announced));
  write_matrices(writer, matrices, options);
  const FileChecksum checksum = writer.finish();
  if (options.checksums) (*options.checksums)[path.filename().string()] = checksum;
}

bool for_serving(AdapterLayout layout) { return layout == AdapterLayout::kKt || layout == AdapterLayout::kSglang; }

}  // namespace

void require_layout(const ParameterStore& store, AdapterLayout layout) {
  if (!for_serving(layout)) return;
  std::set<std::pair<int64_t, double>> scales;
  for (const Parameter& p : store.all()) {
    for (const AttachedAdapter& attached : p.adapters()) {
      scales.insert({scale_of(attached).rank, attached.alpha});
      if (attached.adapter.magnitude == nullptr) continue;
      throw UserError("the adapter is a DoRA, for which the layouts kt and sglang have no place", "adapter_layout",
                      "use split or target_parameters, or merge the adapter");
    }
    if (!p.trainable() || !can_be_saved_whole(p.kind())) continue;
    throw UserError(
        p.kind() == ParameterKind::kRouter
            ? "the adapter trains the router too, for which the layouts kt and sglang have no place"
            : "the adapter trains '" + p.name() + "' whole, for which the layouts kt and sglang have no place",
        "adapter_layout", "use split or target_parameters, freeze it, or merge the adapter");
  }
  if (scales.size() <= 1) return;
  throw UserError("the adapters have ranks or alphas of their own, for which the layouts kt and sglang have no place",
                  "adapter_layout", "use split or target_parameters, or merge the adapter");
}

void save_adapter(const std::filesystem::path& directory, const ParameterStore& store,
                  const AdapterSaveOptions& options) {
  require_layout(store, options.layout);
  bool any_split = false, fused_files = false;
  for (const Parameter& p : store.all()) {
    if (!is_experts(p)) continue;
    for (const AttachedAdapter& attached : p.adapters()) any_split |= !attached.shared;
    fused_files |= !p.adapters().empty() && !has_expert_files(p);
  }
  // PEFT has no other form for experts without files of their own.
  const AdapterLayout layout =
      fused_files && options.layout == AdapterLayout::kSplit ? AdapterLayout::kTargetParameters : options.layout;
  const bool fuse = any_split && layout == AdapterLayout::kTargetParameters;
  const FusedScales scales(store, options.lora);
  std::vector<FileMatrix> matrices;
  switch (layout) {
    case AdapterLayout::kAsTrained:
      matrices = as_parameterised(store);
      break;
    case AdapterLayout::kSplit:
      matrices = as_split(store, ExpertNaming::kFile);
      break;
    case AdapterLayout::kTargetParameters:
      matrices = fuse ? as_target_parameters(store, scales) : as_parameterised(store);
      break;
    case AdapterLayout::kKt:
      matrices = beside_experts(store);
      break;
    case AdapterLayout::kSglang:
      matrices = as_split(store, ExpertNaming::kServing);
  }
  const auto scale = [&](const Parameter& p, const AttachedAdapter& attached) {
    return fuse ? scales.of(p) : scale_of(attached);
  };
  const LoraOptions& lora = options.lora;
  Json config = adapter_config(store, {.lora = lora,
                                       .base_model = options.base_model,
                                       .layout = layout,
                                       .doubled = fuse && scales.uniform(),
                                       .scale = scale});
  if (for_serving(layout) && lora.use_rslora) {  // servers scale by alpha / r alone
    config["use_rslora"] = false;
    config["lora_alpha"] = lora.alpha * std::sqrt(static_cast<double>(lora.r));
  }
  write_file(directory / "adapter_model.safetensors", matrices, options);
  if (layout == AdapterLayout::kKt) {
    write_file(directory / kKtFile, as_kt_experts(store, lora.r), options);
  } else {
    std::filesystem::remove(directory / kKtFile);  // of an adapter that stood here before
  }
  write_text_file(directory / "adapter_config.json", config.dump(2) + "\n");
}

}  // namespace hone
