#include "params/parameter_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "core/arena.h"
#include "core/transfer.h"
#include "ops/adamw/dynamic_code.h"
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

/// One of the tensors that the store gives parameters.
struct ParameterStore::Part {
  std::function<Tensor&(Parameter&)> tensor;
  /// Its shape and dtype for a parameter that is trained, or not; none if it has no such tensor.
  std::function<std::optional<std::pair<Shape, DType>>(const Parameter&, bool trained)> need;
  int64_t ParameterBytes::*count;       ///< what it counts as
  Tensor Bucket::*of_bucket = nullptr;  ///< of parameters in buckets, the tensor that it is a part of

  bool of_gradient() const { return of_bucket == &Bucket::gradients; }
};

namespace {

using Need = std::optional<std::pair<Shape, DType>>;

Need when(bool kept, const Shape& shape, DType dtype) { return kept ? Need{{shape, dtype}} : Need{}; }

/// What the optimizer keeps for each element it steps here.
Shape state_shape(const Parameter& p) { return p.sharded() ? Shape{p.own().count} : p.shape(); }

Need state_of(const Parameter& p, bool kept, DType dtype) {
  return when(kept && p.own().count > 0, state_shape(p), dtype);
}

Need scales_of(const Parameter& p, bool kept, DType dtype) {
  return state_of(p, kept && size_of(dtype) == 1, DType::kF32)
             ? Need{{{(p.own().count + kMomentBlock - 1) / kMomentBlock}, DType::kF32}}
             : Need{};
}

bool keeps(const Parameter& p, SecondMoment kind) { return p.formats().second_moment == kind; }

/// The factors of second moments leave out one of the last two dimensions.
Need factors_of(const Parameter& p, int dropped_from_the_end) {
  if (!keeps(p, SecondMoment::kFactored)) return std::nullopt;
  Shape shape;
  const int rank = p.shape().rank();
  for (int i = 0; i < rank; ++i) {
    if (i != rank - dropped_from_the_end) shape.push_back(p.shape()[i]);
  }
  return Need{{shape, DType::kF32}};
}

}  // namespace

const std::vector<ParameterStore::Part>& ParameterStore::parts() {
  const auto trained = [](auto need) {
    return [need](const Parameter& p, bool is_trained) { return is_trained ? need(p) : Need{}; };
  };
  static const std::vector<Part> list = {
      {[](Parameter& p) -> Tensor& { return p.value_; },
       [](const Parameter& p, bool) {
         HONE_ASSERT(p.format().dense() || !p.trainable(), p.name());
         const FormatTensor payload = p.format().payload(p.shape(), p.dtype());
         return Need{{payload.shape, payload.dtype}};
       },
       &ParameterBytes::weights, &Bucket::values},
      {[](Parameter& p) -> Tensor& { return p.scales_; },
       [](const Parameter& p, bool) {
         const std::optional<FormatTensor> scales = p.format().scales(p.shape());
         return scales ? Need{{scales->shape, scales->dtype}} : Need{};
       },
       &ParameterBytes::weights},
      {[](Parameter& p) -> Tensor& { return p.gradient_; }, trained([](const Parameter& p) {
         return Need{{p.shape(), p.formats().gradient}};
       }),
       &ParameterBytes::gradients, &Bucket::gradients},
      {[](Parameter& p) -> Tensor& { return p.moment1_.values; },
       trained([](const Parameter& p) { return state_of(p, p.formats().has_m, p.formats().m); }),
       &ParameterBytes::moments},
      {[](Parameter& p) -> Tensor& { return p.moment1_.scales; },
       trained([](const Parameter& p) { return scales_of(p, p.formats().has_m, p.formats().m); }),
       &ParameterBytes::moments},
      {[](Parameter& p) -> Tensor& { return p.moment2_.values; },
       trained([](const Parameter& p) { return state_of(p, keeps(p, SecondMoment::kWhole), p.formats().v); }),
       &ParameterBytes::moments},
      {[](Parameter& p) -> Tensor& { return p.moment2_.scales; },
       trained([](const Parameter& p) { return scales_of(p, keeps(p, SecondMoment::kWhole), p.formats().v); }),
       &ParameterBytes::moments},
      {[](Parameter& p) -> Tensor& { return p.row_moments_; },
       trained([](const Parameter& p) { return factors_of(p, 1); }), &ParameterBytes::moments},
      {[](Parameter& p) -> Tensor& { return p.column_moments_; },
       trained([](const Parameter& p) { return factors_of(p, 2); }), &ParameterBytes::moments},
      {[](Parameter& p) -> Tensor& { return p.master_; },
       trained([](const Parameter& p) { return state_of(p, p.keeps_master(), DType::kF32); }),
       &ParameterBytes::master}};
  return list;
}

/// Where the tensors of a part are in its memory.
struct ParameterStore::Places {
  struct Place {
    const Parameter* parameter;
    size_t offset;
    Shape shape;
    DType dtype;
  };
  std::vector<Place> list;
  size_t bytes = 0;
  std::vector<size_t> buckets = {};  ///< where each begins
};

/// The parameters of buckets, one bucket after the other.
ParameterStore::Places ParameterStore::bucket_places(const Part& part) const {
  Places places;
  for (const Bucket& bucket : buckets_) {
    size_t element = 0;
    places.buckets.push_back(places.bytes);
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      const Need need = part.need(*bucket.parameters[i], true);
      element = size_of(need->second);
      const size_t offset = places.bytes + static_cast<size_t>(bucket.offsets[i]) * element;
      places.list.push_back({bucket.parameters[i], offset, need->first, need->second});
    }
    places.bytes += static_cast<size_t>(bucket.elements) * element;
  }
  return places;
}

void ParameterStore::find_buckets(const Part& part, const Places& places, const Buffer& buffer) {
  for (size_t i = 0; i < places.buckets.size(); ++i) {
    Bucket& bucket = buckets_[i];
    const DType dtype = part.need(*bucket.parameters.front(), true)->second;
    bucket.*part.of_bucket = buffer.tensor({bucket.elements}, dtype, places.buckets[i]);
  }
}

ParameterStore::Places ParameterStore::places_of(const Part& part, bool training) const {
  const bool in_buckets = training && part.of_bucket != nullptr && !buckets_.empty();
  Places places = in_buckets ? bucket_places(part) : Places{};
  std::map<int, size_t> layer_bytes;  // of layers that take turns
  for (const Parameter& parameter : parameters_) {
    if (in_buckets && parameter.trainable()) continue;
    const Need need = part.need(parameter, training && parameter.trainable());
    if (!need) continue;
    const auto& [shape, dtype] = *need;
    const bool takes_turns = part.of_gradient() && share_layer_gradients_ && parameter.layer() >= 0;
    size_t& top = takes_turns ? layer_bytes[parameter.layer()] : places.bytes;
    places.list.push_back({&parameter, top, shape, dtype});
    const size_t size = static_cast<size_t>(shape.numel()) * size_of(dtype);
    top += (size + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
  }
  if (layer_bytes.empty()) return places;
  size_t most = 0;
  for (const auto& [layer, bytes] : layer_bytes) most = std::max(most, bytes);
  for (Places::Place& place : places.list) {
    if (place.parameter->layer() >= 0) place.offset += places.bytes;
  }
  places.bytes += most;
  return places;
}

ParameterBytes ParameterStore::bytes_of(const Parameter& parameter) {
  ParameterBytes bytes;
  for (const Part& part : parts()) {
    if (const Need need = part.need(parameter, parameter.trainable())) {
      bytes.*part.count += need->first.numel() * static_cast<int64_t>(size_of(need->second));
    }
  }
  return bytes;
}

ParameterBytes ParameterStore::bytes(bool training) const {
  ParameterBytes bytes;
  for (const Part& part : parts()) bytes.*part.count += static_cast<int64_t>(places_of(part, training).bytes);
  return bytes;
}

void ParameterStore::allocate(Device device, bool inference) {
  for (const Part& part : parts()) {
    for (Parameter& parameter : parameters_) part.tensor(parameter) = {};  // what a plan on paper left
    const Places places = places_of(part, !inference);
    // One allocation for all of a kind: a GPU rounds each up to 2 MiB, and clears it.
    buffers_.emplace_back(device, places.bytes);
    for (const Places::Place& place : places.list) {
      part.tensor(*by_name_.at(place.parameter->name())) =
          buffers_.back().tensor(place.shape, place.dtype, place.offset);
    }
    find_buckets(part, places, buffers_.back());
  }
}

void ParameterStore::allocate_trainable_values(Device device) {
  for (Parameter* parameter : trainable()) {
    buffers_.emplace_back(device, static_cast<size_t>(parameter->shape().numel()) * size_of(parameter->dtype()));
    parameter->value_ = buffers_.back().tensor(parameter->shape(), parameter->dtype());
  }
}

void ParameterStore::allocate_dry(Device device) {
  auto* const address = reinterpret_cast<std::byte*>(Buffer::kAlignment);
  for (const Part& part : parts()) {
    for (Parameter& parameter : parameters_) {
      const Need need = part.need(parameter, parameter.trainable());
      if (need) part.tensor(parameter) = {address, need->second, need->first, device};
    }
  }
}

void ParameterStore::begin_step(const StepScalars* scalars) {
  for (Parameter& parameter : parameters_) {
    parameter.uses_ = 0;
    parameter.written_in_pass_ = false;
    parameter.scalars_ = scalars;
  }
}

void ParameterStore::continue_step() {
  for (Parameter& parameter : parameters_) {
    parameter.uses_ = 1;
    parameter.written_in_pass_ = false;
  }
}

void ParameterStore::zero_unwritten(const Context& context) { zero_unwritten(context, trainable()); }

void ParameterStore::zero_unwritten(const Context& context, const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    if (parameter->uses_ > 0) continue;
    fill_zero(context, parameter->gradient_);
    ++parameter->uses_;
  }
}

void write_values(Parameter& parameter, int64_t offset, const float* values, int64_t count) {
  HONE_ASSERT(offset >= 0 && offset + count <= parameter.shape().numel() && parameter.format().dense(),
              parameter.name());
  const auto write = [](const Tensor& tensor, Slice to, const void* source) {
    Tensor slice = tensor;
    slice.data += static_cast<size_t>(to.begin) * size_of(tensor.dtype);
    slice.shape = {to.count};
    copy_from_host(slice, source, slice.bytes());
  };
  const Slice written{offset, count};
  const Tensor& value = parameter.value();
  if (value.dtype == DType::kF32) return write(value, written, values);
  const std::vector<BFloat16> rounded(values, values + count);
  write(value, written, rounded.data());
  if (!parameter.has_master()) return;
  const Slice own = parameter.own(), here = own.intersect(written);
  write(parameter.master(), {here.begin - own.begin, here.count}, values + (here.begin - offset));
}

}  // namespace hone
