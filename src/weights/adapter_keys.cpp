#include "weights/adapter_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/transfer.h"

namespace hone {

namespace {

std::string without_weight(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

Parameter* lora_a(const AttachedAdapter& attached) { return static_cast<Parameter*>(attached.adapter.lora_a); }
Parameter* lora_b(const AttachedAdapter& attached) { return static_cast<Parameter*>(attached.adapter.lora_b); }

const char* prefix_of(ExpertNaming names) { return names == ExpertNaming::kServing ? "" : kAdapterKeyPrefix; }

/// `module` with the prefix of keys.
void add_pair(std::vector<AdapterTensor>& tensors, const std::string& module, const AttachedAdapter& attached,
              int64_t expert) {
  for (Parameter* p : {lora_a(attached), lora_b(attached)}) {
    const int64_t rows = p->shape()[-2], columns = p->shape()[-1];
    const char* which = p == lora_a(attached) ? ".lora_A.weight" : ".lora_B.weight";
    tensors.push_back({module + which, rows, columns, AdapterTensor::Form::kMatrix, p, expert * rows * columns});
  }
  auto* magnitude = static_cast<Parameter*>(attached.adapter.magnitude);
  if (magnitude == nullptr) return;
  tensors.push_back({module + kMagnitudeSuffix, magnitude->shape()[0], 1, AdapterTensor::Form::kMatrix, magnitude, 0});
}

void add_shared(std::vector<AdapterTensor>& tensors, const std::string& module, const Parameter& adapted,
                const AttachedAdapter& attached) {
  Parameter &a = *lora_a(attached), &b = *lora_b(attached);
  const int64_t experts = a.shape()[0], r = a.shape()[1];
  tensors.push_back({module + ".lora_A.weight", r * experts, a.shape()[2], AdapterTensor::Form::kExpertOuter, &a, 0});
  tensors.push_back(
      {module + ".lora_B.weight", b.shape()[1], r * experts, AdapterTensor::Form::kExpertInner, &b, 0, &adapted});
}

/// Whether the other fused weight of the same experts has a shared adapter too: then gate_up is the inner wrapper.
bool has_shared_sibling(const ParameterStore& store, const Parameter& experts) {
  for (const Parameter& other : store.all()) {
    if (&other == &experts || !is_experts(other) || experts_module(other) != experts_module(experts)) continue;
    for (const AttachedAdapter& attached : other.adapters()) {
      if (attached.shared) return true;
    }
  }
  return false;
}

std::string shared_module(const ParameterStore& store, const Parameter& experts) {
  const bool inner = experts.kind() == ParameterKind::kExpertsGateUp && has_shared_sibling(store, experts);
  return experts_module(experts) + (inner ? ".base_layer" : "");
}

}  // namespace

bool can_be_saved_whole(ParameterKind kind) {
  return kind == ParameterKind::kRouter || kind == ParameterKind::kEmbedding || kind == ParameterKind::kHead ||
         kind == ParameterKind::kNorm;
}

std::vector<std::string> whole_names(const ParameterStore& store, const Parameter& whole) {
  std::vector<std::string> names = {whole.name()};
  const bool tied = whole.kind() == ParameterKind::kEmbedding &&
                    std::none_of(store.all().begin(), store.all().end(),
                                 [](const Parameter& p) { return p.kind() == ParameterKind::kHead; });
  if (tied) names.push_back("lm_head.weight");
  return names;
}

std::string kt_key(const Parameter& experts, const std::string& part, bool a) {
  const std::string projection = part.substr(0, part.find('_'));  // gate of gate_proj
  return fmt::format("layers.{}.experts.{}_lora_{}", experts.layer(), projection, a ? "a" : "b");
}

ExpertKeys::ExpertKeys(const Parameter& experts, ExpertNaming names) : experts_(experts), naming_(names) {
  for (const FileTensor& tensor : separate_experts(experts)) names_[tensor.offset] = without_weight(tensor.name);
}

std::string ExpertKeys::module(int64_t expert, int64_t out_begin) const {
  if (naming_ == ExpertNaming::kFile) {
    const auto found = names_.find((expert * experts_.shape()[1] + out_begin) * experts_.shape()[2]);
    HONE_ASSERT(found != names_.end(), experts_.name());
    return prefix_of(naming_) + found->second;
  }
  for (const ExpertPart& part : parts_of(experts_)) {
    if (part.out_begin != out_begin) continue;
    return fmt::format("{}{}.{}.{}", prefix_of(naming_), experts_module(experts_), expert, part.name);
  }
  HONE_ASSERT(false, experts_.name());
}

std::string ExpertKeys::leaf(int64_t out_begin) const {
  const std::string name = module(0, out_begin);
  return name.substr(name.rfind('.') + 1);
}

std::vector<AdapterTensor> adapter_tensors(const ParameterStore& store, ExpertNaming names) {
  std::vector<AdapterTensor> tensors;
  const std::string prefix = prefix_of(names);
  for (const Parameter& p : store.all()) {
    for (const AttachedAdapter& attached : p.adapters()) {
      if (!is_experts(p)) {
        add_pair(tensors, prefix + without_weight(p.name()), attached, 0);
      } else if (attached.shared) {
        add_shared(tensors, prefix + shared_module(store, p), p, attached);
      } else {
        const ExpertKeys keys(p, names);
        for (int64_t e = 0; e < p.shape()[0]; ++e) {
          add_pair(tensors, keys.module(e, attached.out_begin), attached, e);
          tensors[tensors.size() - 2].kt_key = kt_key(p, attached.target, true);
          tensors.back().kt_key = kt_key(p, attached.target, false);
        }
      }
    }
    if (!p.trainable() || !can_be_saved_whole(p.kind())) continue;
    for (const std::string& name : whole_names(store, p)) {
      tensors.push_back({prefix + name, p.shape()[0], p.shape().rank() == 1 ? 1 : p.shape()[1],
                         AdapterTensor::Form::kWhole, const_cast<Parameter*>(&p), 0});
    }
  }
  return tensors;
}

namespace {

/// Calls body(element of the parameter, element of the file) for all of a kExpertInner tensor.
template <class Body>
void for_each_element(const AdapterTensor& tensor, const Body& body) {
  const Shape& shape = tensor.parameter->shape();  // [E, out, r]
  const int64_t experts = shape[0], out = shape[1], r = shape[2];
  const MatrixOrder order(tensor.adapted->order(), tensor.adapted->shape());
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t o = 0; o < out; ++o) {
      const int64_t row = order.file_output(o);
      for (int64_t rho = 0; rho < r; ++rho) {
        body(static_cast<size_t>((e * out + o) * r + rho), static_cast<size_t>((row * r + rho) * experts + e));
      }
    }
  }
}

}  // namespace

void scatter_adapter_tensor(const AdapterTensor& tensor, const std::vector<float>& file_values) {
  Parameter& p = *tensor.parameter;
  if (tensor.form != AdapterTensor::Form::kExpertInner) {
    write_values(p, tensor.offset, file_values.data(), static_cast<int64_t>(file_values.size()));
    return;
  }
  std::vector<float> values(file_values.size());
  for_each_element(tensor, [&](size_t in_parameter, size_t in_file) { values[in_parameter] = file_values[in_file]; });
  write_values(p, 0, values.data(), static_cast<int64_t>(values.size()));
}

std::vector<float> gather_adapter_tensor(const AdapterTensor& tensor, const float* parameter_values) {
  const float* source = parameter_values + tensor.offset;
  std::vector<float> values(source, source + tensor.rows * tensor.columns);
  if (tensor.form != AdapterTensor::Form::kExpertInner) return values;
  for_each_element(tensor, [&](size_t in_parameter, size_t in_file) { values[in_file] = source[in_parameter]; });
  return values;
}

namespace {

bool is_whole_on_host(const Parameter& parameter) {
  return !parameter.shards_values() && parameter.master().device.kind == DeviceKind::kCpu;
}

}  // namespace

const float* HostParameters::operator[](const Parameter& parameter) {
  if (is_whole_on_host(parameter)) return parameter.master().as<float>();
  Copy& copy = copy_of(parameter);
  if (copy.read.valid()) copy.read.get();
  return copy.values.data();
}

void HostParameters::prefetch(const Parameter& parameter) {
  if (!is_whole_on_host(parameter)) copy_of(parameter);
}

HostParameters::Copy& HostParameters::copy_of(const Parameter& parameter) {
  const auto found =
      std::find_if(copies_.begin(), copies_.end(), [&](const Copy& copy) { return copy.parameter == &parameter; });
  if (found != copies_.end()) {
    copies_.splice(copies_.begin(), copies_, found);
    return copies_.front();
  }
  if (copies_.size() < kKept) copies_.emplace_back();
  copies_.splice(copies_.begin(), copies_, std::prev(copies_.end()));
  Copy& copy = copies_.front();
  if (copy.read.valid()) copy.read.get();
  copy.parameter = &parameter;
  copy.values.resize(static_cast<size_t>(parameter.shape().numel()));
  float* to = copy.values.data();
  if (parameter.shards_values()) {  // by collectives, which have one order
    HONE_ASSERT(reader_ != nullptr, parameter.name());
    reader_->read(parameter, StatePart::kValue, 0, parameter.shape().numel(),
                  [&](const std::byte* elements, int64_t count) {
                    std::memcpy(to, elements, static_cast<size_t>(count) * sizeof(float));
                    to += count;
                  });
    return copy;
  }
  const Tensor& values = parameter.master();
  values.as<float>();  // asserts the type
  copy.read = std::async(std::launch::async, [values, to] { copy_to_host(to, values); });
  return copy;
}

}  // namespace hone
