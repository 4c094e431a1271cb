#include "params/parameter_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/stream/transfer.h"
#include "ops/cast/cast.h"

namespace hone {

Parameter& ParameterStore::add(ParameterSpec spec, DType dtype) {
  HONE_ASSERT(!by_name_.contains(spec.name), spec.name);
  for (const auto& [own, in_files] : file_parts_) {
    const size_t found = spec.kind == ParameterKind::kLora ? std::string::npos : spec.name.find(own);
    if (found == std::string::npos || (found > 0 && !own.starts_with("."))) continue;
    std::vector<FileLayout> renamed = spec.layouts;
    renamed.push_back({{spec.name, spec.shape, 0, spec.order}});
    for (FileLayout& layout : renamed) {
      for (FileTensor& tensor : layout) {
        if (const size_t at = tensor.name.find(own); at != std::string::npos)
          tensor.name.replace(at, own.size(), in_files);
      }
    }
    spec.layouts.insert(spec.layouts.begin(), renamed.begin(), renamed.end());
  }
  Parameter& parameter = parameters_.emplace_back(std::move(spec), dtype);
  parameter.index_ = static_cast<uint32_t>(parameters_.size());
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
  for (const FileLayout& layout : parameter.spec().all_layouts()) {
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
      if (parameter.spec().kind != ParameterKind::kBuffer && selects(pattern, parameter, key)) {
        chosen.insert(&parameter);
        ++matches;
      }
    }
    if (matches == 0) {
      std::set<std::string> names;
      for (const Parameter& parameter : parameters_) {
        if (parameter.spec().kind != ParameterKind::kBuffer) names.insert(parameter.name());
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

void ParameterStore::begin_step(const StepScalars* scalars, const StepScalars* on_host) {
  for (Parameter& parameter : parameters_) {
    parameter.gradient_.uses_ = 0;
    parameter.gradient_.written_in_pass_ = false;
    parameter.gradient_.scalars_ = parameter.value().home().host_computed ? on_host : scalars;
  }
}

void ParameterStore::continue_step() {
  for (Parameter& parameter : parameters_) {
    parameter.gradient_.uses_ = parameter.gradient_.staged_ ? 0 : 1;
    parameter.gradient_.written_in_pass_ = false;
  }
}

void ParameterStore::zero_unwritten(const Context& context, const Context* host) {
  std::vector<Parameter*> lasting, on_host;
  for (Parameter* p : trainable()) {
    if (!p->gradient().staged()) (p->value().home().host_computed ? on_host : lasting).push_back(p);
  }
  zero_unwritten(context, lasting);
  HONE_ASSERT(on_host.empty() || host != nullptr);
  if (host != nullptr) zero_unwritten(*host, on_host);
}

void ParameterStore::zero_unwritten(const Context& context, const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    if (parameter->gradient_.uses_ > 0) continue;
    fill_zero(context, parameter->gradient_.whole_);
    ++parameter->gradient_.uses_;
  }
}

void write_values(Parameter& parameter, int64_t offset, const float* values, int64_t count) {
  HONE_ASSERT(offset >= 0 && offset + count <= parameter.shape().numel() && parameter.value().format().dense(),
              parameter.name());
  const Slice written{offset, count};
  // Writes the overlap of `tensor`, which holds the elements `slice`, and `source`, whose elements begin at `offset`.
  const auto write = [&](const Tensor& tensor, Slice slice, const auto* source) {
    const Slice here = slice.intersect(written);
    Tensor to = tensor;
    to.data += static_cast<size_t>(here.begin - slice.begin) * size_of(tensor.dtype);
    to.shape = {here.count};
    if (here.count > 0) copy_from_host(to, source + (here.begin - offset), to.bytes());
  };
  const StoredValue& stored = parameter.value().stored();
  if (stored.payload.dtype == DType::kF32) return write(stored.payload, stored.slice, values);
  const std::vector<BFloat16> rounded(values, values + count);
  write(stored.payload, stored.slice, rounded.data());
  if (parameter.state().has_master()) write(parameter.state().master, parameter.share().own(), values);
}

}  // namespace hone
