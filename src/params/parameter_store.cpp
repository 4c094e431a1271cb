#include "params/parameter_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/arena.h"
#include "core/transfer.h"
#include "ops/cast/cast.h"

namespace hone {

ParameterBytes& ParameterBytes::operator+=(const ParameterBytes& other) {
  weights += other.weights;
  master += other.master;
  gradients += other.gradients;
  moments += other.moments;
  return *this;
}

Parameter& ParameterStore::add(ParameterSpec spec, DType dtype) {
  HONE_ASSERT(!by_name_.contains(spec.name), spec.name);
  Parameter& parameter = parameters_.emplace_back(std::move(spec), dtype);
  by_name_[parameter.name()] = &parameter;
  return parameter;
}

Parameter* ParameterStore::find(const std::string& name) {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

std::vector<Parameter*> ParameterStore::trainable() {
  std::vector<Parameter*> result;
  for (Parameter& parameter : parameters_) {
    if (parameter.trainable()) result.push_back(&parameter);
  }
  return result;
}

namespace {

/// Whether a pattern selects a parameter. Matching only some of the names under which a file holds its parts is
/// refused.
bool selects(const Pattern& pattern, const Parameter& parameter, const std::string& key) {
  if (pattern.matches(parameter.name())) return true;
  for (const FileLayout& layout : parameter.layouts()) {
    const auto matched =
        std::count_if(layout.begin(), layout.end(), [&](const FileTensor& t) { return pattern.matches(t.name); });
    if (matched == static_cast<std::ptrdiff_t>(layout.size())) return true;
    if (matched > 0) {
      throw UserError(fmt::format("{} '{}' matches {} of the {} tensors that make up '{}'", key, pattern.text(),
                                  matched, layout.size(), parameter.name()),
                      key, "the experts of a layer are trained or frozen together: match all of them");
    }
  }
  return false;
}

}  // namespace

std::vector<Parameter*> ParameterStore::select(const std::vector<std::string>& patterns, const std::string& key) {
  std::set<const Parameter*> chosen;
  for (const std::string& text : patterns) {
    const Pattern pattern(text);
    size_t matches = 0;
    for (Parameter& parameter : parameters_) {
      if (parameter.kind() != ParameterKind::kBuffer && selects(pattern, parameter, key)) {
        chosen.insert(&parameter);
        ++matches;
      }
    }
    if (matches == 0) {
      std::set<std::string> names;
      for (const Parameter& parameter : parameters_) {
        if (parameter.kind() != ParameterKind::kBuffer) names.insert(parameter.name());
      }
      throw UserError(fmt::format("{} '{}' matches no parameter.{}", key, text, did_you_mean(text, names)), key,
                      "`hone inspect MODEL` lists the names");
    }
  }
  std::vector<Parameter*> result;
  for (Parameter& parameter : parameters_) {
    if (chosen.contains(&parameter)) result.push_back(&parameter);
  }
  return result;
}

ParameterBytes ParameterStore::bytes_of(const Parameter& parameter) {
  const int64_t n = parameter.shape().numel();
  ParameterBytes bytes;
  bytes.weights = n * static_cast<int64_t>(size_of(parameter.dtype()));
  if (parameter.trainable()) {
    bytes.gradients = n * 4;
    bytes.moments = n * 2 * static_cast<int64_t>(size_of(parameter.moment_dtype()));
    if (parameter.dtype() != DType::kF32) bytes.master = n * 4;
  }
  return bytes;
}

void ParameterStore::allocate(Device device, bool inference) {
  for (Tensor Parameter::*member :
       {&Parameter::value_, &Parameter::gradient_, &Parameter::moment1_, &Parameter::moment2_, &Parameter::master_}) {
    const bool of_value = member == &Parameter::value_, of_master = member == &Parameter::master_;
    const bool of_moment = member == &Parameter::moment1_ || member == &Parameter::moment2_;
    const auto dtype_of = [&](const Parameter& parameter) {
      return of_value ? parameter.dtype() : of_moment ? parameter.moment_dtype() : DType::kF32;
    };
    std::vector<std::pair<Parameter*, size_t>> places;
    size_t bytes = 0;
    for (Parameter& parameter : parameters_) {
      const bool trained = parameter.trainable() && !inference;
      if (!of_value && (!trained || (of_master && parameter.dtype() == DType::kF32))) continue;
      places.emplace_back(&parameter, bytes);
      const size_t size = size_of(dtype_of(parameter));
      bytes += (static_cast<size_t>(parameter.shape().numel()) * size + Arena::kAlignment - 1) / Arena::kAlignment *
               Arena::kAlignment;
    }
    // One allocation for all of a kind: a GPU rounds each up to 2 MiB, and clears it.
    buffers_.emplace_back(device, bytes);
    for (const auto& [parameter, offset] : places) {
      parameter->*member = buffers_.back().tensor(parameter->shape(), dtype_of(*parameter), offset);
    }
  }
}

void ParameterStore::allocate_dry(Device device) {
  auto* const address = reinterpret_cast<std::byte*>(Buffer::kAlignment);
  for (Parameter& parameter : parameters_) {
    parameter.value_ = {address, parameter.dtype(), parameter.shape(), device};
    if (!parameter.trainable()) continue;
    parameter.gradient_ = {address, DType::kF32, parameter.shape(), device};
    parameter.moment1_ = parameter.moment2_ = {address, parameter.moment_dtype(), parameter.shape(), device};
    if (parameter.dtype() != DType::kF32) parameter.master_ = parameter.gradient_;
  }
}

void ParameterStore::begin_step() {
  for (Parameter& parameter : parameters_) parameter.gradient_written_ = false;
}

void ParameterStore::continue_step() {
  for (Parameter& parameter : parameters_) parameter.gradient_written_ = true;
}

void ParameterStore::zero_unwritten(const Context& context) {
  for (Parameter& parameter : parameters_) {
    if (parameter.trainable_ && !parameter.gradient_written_) {
      fill_zero(context, parameter.gradient_);
      parameter.gradient_written_ = true;
    }
  }
}

void write_values(Parameter& parameter, int64_t offset, const float* values, int64_t count) {
  HONE_ASSERT(offset >= 0 && offset + count <= parameter.shape().numel(), parameter.name());
  const auto write = [&](const Tensor& tensor, const void* source) {
    Tensor slice = tensor;
    slice.data += static_cast<size_t>(offset) * size_of(tensor.dtype);
    slice.shape = {count};
    copy_from_host(slice, source, slice.bytes());
  };
  const Tensor& value = parameter.value();
  if (value.dtype == DType::kF32) return write(value, values);
  const std::vector<BFloat16> rounded(values, values + count);
  write(value, rounded.data());
  if (parameter.has_master()) write(parameter.master(), values);
}

}  // namespace hone
