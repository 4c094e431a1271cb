// ParameterStore: the memory layout of parameters' tensors.
#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/aligned.h"
#include "core/cpu/numa.h"
#include "core/cuda/planned_device.h"
#include "core/memory/arena.h"
#include "core/memory/host_buffer.h"
#include "ops/adamw/dynamic_code.h"
#include "params/frozen_weights.h"
#include "params/parameter_store.h"
#include "params/payload.h"
#include "params/placement.h"

namespace hone {

namespace {

using Need = std::optional<std::pair<Shape, DType>>;

Need when(bool kept, const Shape& shape, DType dtype) { return kept ? Need{{shape, dtype}} : Need{}; }

/// Optimizer state per element that this rank steps.
Shape state_shape(const Parameter& p) { return p.share().sharded() ? Shape{p.share().own().count} : p.local_shape(); }

Need state_of(const Parameter& p, bool kept, DType dtype) {
  return when(kept && p.share().own().count > 0, state_shape(p), dtype);
}

Need scales_of(const Parameter& p, bool kept, DType dtype) {
  return state_of(p, kept && size_of(dtype) == 1, DType::kF32)
             ? Need{{{(p.share().own().count + kMomentBlock - 1) / kMomentBlock}, DType::kF32}}
             : Need{};
}

bool keeps(const Parameter& p, SecondMoment kind) { return p.state().formats.second_moment == kind; }

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

bool shards_gradients(const Parameter& p) {
  return p.share().bucket() != nullptr && p.share().bucket()->shards_gradients();
}

Need need_of(const FormatTensor& tensor) { return Need{{tensor.shape, tensor.dtype}}; }

bool is_apart(const Parameter& p) { return p.value().home().memory == ValueHome::Memory::kApart; }

/// The value as this rank keeps it: where ops read it, or apart from the slot to which it is brought.
Need stored_value(const Parameter& p, bool brought) {
  const bool none = is_apart(p) || p.value().home().memory == ValueHome::Memory::kFile;
  return p.value().home().brought == brought && !none ? need_of(stored_payload(p)) : Need{};
}

/// The value in its slot.
Need brought_value(const Parameter& p) {
  return p.value().home().brought && !is_apart(p) ? need_of(whole_payload(p)) : Need{};
}

Need scales_of_value(const Parameter& p) {
  const std::optional<FormatTensor> scales = value_scales(p);
  return scales ? need_of(*scales) : Need{};
}

int64_t bytes_of_need(const Need& need) { return need ? bytes_of({need->first, need->second}) : 0; }

/// The part of a bucket's memory that holds a tensor of its parameters.
enum class Room {
  kWhole,  ///< all elements, all the time
  kOwn,    ///< this rank's elements, all the time
  kTurns,  ///< all elements, while the group is used
};

}  // namespace

/// A kind of tensor that the store allocates for parameters.
struct ParameterStore::Part {
  std::function<Tensor&(Parameter&)> tensor;
  /// Its shape and dtype for a parameter, trained or not; nullopt if it has no such tensor.
  std::function<Need(const Parameter&, bool trained)> need;
  int64_t ParameterBytes::*count;       ///< the field that counts its bytes
  Tensor Bucket::*of_bucket = nullptr;  ///< for parameters in buckets, the bucket's tensor that contains it
  std::function<Room(const Parameter&)> room = {};
  /// The place of this kind when offloaded; nullopt: always the device.
  bool (*in_host)(const ParameterStore&, const Parameter&) = nullptr;
};

const std::vector<ParameterStore::Part>& ParameterStore::parts() {
  const auto trained = [](auto need) {
    return [need](const Parameter& p, bool is_trained) { return is_trained ? need(p) : Need{}; };
  };
  const auto always = [](Room room) { return [room](const Parameter&) { return room; }; };
  const auto offloaded_value = [](const ParameterStore&, const Parameter& p) { return p.value().home().offloaded(); };
  const auto state_in_host = [](const ParameterStore& store, const Parameter&) { return store.offloads_state_; };
  static const std::vector<Part> list = {
      {[](Parameter& p) -> Tensor& { return p.value_.stored_.payload; },
       [](const Parameter& p, bool) { return stored_value(p, false); }, &ParameterBytes::weights, &Bucket::values,
       always(Room::kWhole)},
      {[](Parameter& p) -> Tensor& { return p.value_.stored_.payload; },
       [](const Parameter& p, bool) { return stored_value(p, true); }, &ParameterBytes::weights, &Bucket::own_values,
       [](const Parameter& p) { return p.value().home().sharded ? Room::kOwn : Room::kWhole; }, offloaded_value},
      {[](Parameter& p) -> Tensor& { return p.value_.present_; },
       [](const Parameter& p, bool) { return brought_value(p); }, &ParameterBytes::weights, &Bucket::values,
       always(Room::kTurns)},
      {[](Parameter& p) -> Tensor& { return p.value_.stored_.scales; },
       [](const Parameter& p, bool) { return is_apart(p) ? Need{} : scales_of_value(p); }, &ParameterBytes::weights},
      {[](Parameter& p) -> Tensor& { return p.gradient_.whole_; }, trained([](const Parameter& p) {
         return Need{{p.local_shape(), p.state().formats.gradient}};
       }),
       &ParameterBytes::gradients, &Bucket::gradients,
       [](const Parameter& p) { return p.gradient().staged() ? Room::kTurns : Room::kWhole; }},
      {[](Parameter& p) -> Tensor& { return p.gradient_.own_; }, trained([](const Parameter& p) {
         return when(hone::shards_gradients(p), {p.share().own().count}, p.state().formats.gradient);
       }),
       &ParameterBytes::gradients, &Bucket::own_gradients, always(Room::kOwn)}};
  static const std::vector<Part> all = [&] {
    std::vector<Part> parts = list;
    const auto add_state = [&](Tensor& (*tensor)(Parameter&), auto need, int64_t ParameterBytes::*count) {
      parts.push_back({tensor, trained(need), count, nullptr, {}, state_in_host});
    };
    add_state([](Parameter& p) -> Tensor& { return p.state_.moment1.values; },
              [](const Parameter& p) { return state_of(p, p.state().formats.has_m, p.state().formats.m); },
              &ParameterBytes::moments);
    add_state([](Parameter& p) -> Tensor& { return p.state_.moment1.scales; },
              [](const Parameter& p) { return scales_of(p, p.state().formats.has_m, p.state().formats.m); },
              &ParameterBytes::moments);
    add_state([](Parameter& p) -> Tensor& { return p.state_.moment2.values; },
              [](const Parameter& p) { return state_of(p, keeps(p, SecondMoment::kWhole), p.state().formats.v); },
              &ParameterBytes::moments);
    add_state([](Parameter& p) -> Tensor& { return p.state_.moment2.scales; },
              [](const Parameter& p) { return scales_of(p, keeps(p, SecondMoment::kWhole), p.state().formats.v); },
              &ParameterBytes::moments);
    add_state([](Parameter& p) -> Tensor& { return p.state_.row_moments; },
              [](const Parameter& p) { return factors_of(p, 1); }, &ParameterBytes::moments);
    add_state([](Parameter& p) -> Tensor& { return p.state_.column_moments; },
              [](const Parameter& p) { return factors_of(p, 2); }, &ParameterBytes::moments);
    add_state([](Parameter& p) -> Tensor& { return p.state_.master; },
              [](const Parameter& p) { return state_of(p, keeps_master(p), DType::kF32); }, &ParameterBytes::master);
    return parts;
  }();
  return all;
}

/// The memory of a tensor, and its offset.
struct ParameterStore::Home {
  enum class Memory {
    kDevice,
    kPinned,  ///< host memory from and to which the device copies
    kHost,    ///< host memory of parameters that are used there
  };
  Memory memory = Memory::kDevice;
  std::optional<int> slot = {};  ///< a slot shared by groups; nullopt: the tensor's memory is its own
  size_t offset = 0;             ///< in the slot, until settle()
};

/// The layout of a part's tensors in its memory.
struct ParameterStore::Places {
  struct Place {
    const Parameter* parameter;
    Home home;
    Shape shape;
    DType dtype;
  };
  struct OfBucket {
    size_t index;
    Home home;
    int64_t elements;
    DType dtype;
  };
  bool training = true;
  std::vector<Place> list;
  std::vector<OfBucket> buckets;
  size_t bytes = 0, pinned_bytes = 0, on_host_bytes = 0;
  std::map<int, std::map<size_t, size_t>> slots;  ///< bytes of each group in a slot

  /// The end of the layout so far, to which the next tensor is appended.
  size_t& top(const Home& home, const ParameterGroup* group) {
    if (home.memory == Home::Memory::kHost) return on_host_bytes;
    if (home.memory == Home::Memory::kPinned) return pinned_bytes;
    return home.slot ? slots[*home.slot][group->index()] : bytes;
  }

  /// Places the slots, each as large as its largest group.
  void settle() {
    std::map<int, size_t> begins;
    for (const auto& [slot, groups] : slots) {
      begins[slot] = bytes;
      size_t most = 0;
      for (const auto& [group, size] : groups) most = std::max(most, size);
      bytes += most;
    }
    const auto move = [&](Home& home) { home.offset += home.slot ? begins.at(*home.slot) : 0; };
    for (Place& place : list) move(place.home);
    for (OfBucket& bucket : buckets) move(bucket.home);
  }
};

ParameterStore::Home ParameterStore::home_of(const Part& part, const Parameter& parameter) const {
  if (parameter.value().home().host_computed) return {.memory = Home::Memory::kHost};
  if (part.in_host != nullptr && part.in_host(*this, parameter)) return {.memory = Home::Memory::kPinned};
  if (!part.room || part.room(parameter) != Room::kTurns) return {};
  // While a group is used, values of the next one are on their way, and gradients of the one before it have not left.
  // Gradients that the optimizer uses at once share one slot.
  const bool used_at_once = part.of_bucket == &Bucket::gradients && !hone::shards_gradients(parameter);
  if (part.of_bucket == &Bucket::values) return {.slot = parameter.share().bucket()->layout.slot};
  return {.slot = used_at_once ? 0 : parameter.group()->slot()};
}

void ParameterStore::place_bucket(const Part& part, const Bucket& bucket, Places& places) const {
  const Parameter& front = *bucket.parameters.front();
  const bool trained = places.training && bucket.kind.trained;
  const Need first = part.need(front, trained);
  if (!first) return;
  const DType dtype = first->second;
  const Room room = part.room(front);
  Home home = home_of(part, front);
  const std::vector<int64_t>& cuts = bucket.value_cuts();
  const auto rank = static_cast<size_t>(front.share_.rank_);
  const int64_t own_begin = room == Room::kOwn ? cuts[rank] : 0;
  const int64_t elements = (room == Room::kOwn ? cuts[rank + 1] : cuts.back()) - own_begin;
  size_t& top = places.top(home, front.group());
  home.offset = top;
  places.buckets.push_back({static_cast<size_t>(&bucket - buckets_.data()), home, elements, dtype});
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const Parameter& p = *bucket.parameters[i];
    const bool none = room == Room::kOwn && p.share().own().count == 0;
    const int64_t element_of_part = room == Room::kOwn ? p.share().own().begin : 0;
    const int64_t element = none ? 0 : bucket.position(i, element_of_part) - own_begin;
    home.offset = top + static_cast<size_t>(element) * size_of(dtype);
    places.list.push_back({&p, home, part.need(p, trained)->first, dtype});
  }
  top += static_cast<size_t>(elements) * size_of(dtype);
}

ParameterStore::Places ParameterStore::places_of(const Part& part, bool training) const {
  Places places;
  places.training = training;
  for (const Bucket& bucket : buckets_) {
    if (part.of_bucket != nullptr) place_bucket(part, bucket, places);
  }
  for (const Parameter& parameter : parameters_) {
    if (part.of_bucket != nullptr && parameter.share().bucket() != nullptr) continue;
    const Need need = part.need(parameter, training && parameter.trainable());
    if (!need) continue;
    const auto& [shape, dtype] = *need;
    Home home = home_of(part, parameter);
    size_t& top = places.top(home, parameter.group());
    home.offset = top;
    places.list.push_back({&parameter, home, shape, dtype});
    top += aligned(static_cast<size_t>(shape.numel()) * size_of(dtype), Arena::kAlignment);
  }
  places.settle();
  return places;
}

ParameterBytes ParameterStore::bytes_of(const Parameter& parameter) {
  ParameterBytes bytes;
  for (const Part& part : parts()) {
    bytes.*part.count += bytes_of_need(part.need(parameter, parameter.trainable()));
  }
  if (is_apart(parameter)) {
    bytes.weights += hone::bytes_of(stored_payload(parameter)) + bytes_of_need(scales_of_value(parameter));
    if (parameter.value().home().brought) bytes.weights += hone::bytes_of(whole_payload(parameter));
  }
  return bytes;
}

ParameterBytes ParameterStore::bytes(bool training) const {
  ParameterBytes bytes;
  for (const Part& part : parts()) {
    const Places places = places_of(part, training);
    bytes.*part.count += static_cast<int64_t>(places.bytes);
    bytes.host += static_cast<int64_t>(places.pinned_bytes + places.on_host_bytes);
    bytes.on_host += static_cast<int64_t>(places.on_host_bytes);
  }
  for (const ValueMemory* memory : memories()) bytes += memory->bytes();
  return bytes;
}

void ParameterStore::present_stored_values() {
  for (Parameter& parameter : parameters_) {
    const bool part = parameter.value().home().sharded || parameter.share().spread();
    parameter.value_.stored_.slice = part ? parameter.share().own() : Slice{0, parameter.shape().numel()};
    if (!parameter.value().home().brought) parameter.value_.present_ = parameter.value_.stored_.payload;
  }
}

std::vector<ValueMemory*> ParameterStore::memories() const {
  std::vector<ValueMemory*> memories;
  if (mapped_) memories.push_back(mapped_.get());
  if (shared_) memories.push_back(shared_.get());
  return memories;
}

void ParameterStore::spread_experts() {
  for (Parameter& p : parameters_) {
    if (!p.value().home().host_computed || is_apart(p) || !is_experts(p)) continue;
    for (const Tensor& tensor : {p.value_.stored_.payload, p.value_.stored_.scales, p.gradient_.whole_}) {
      if (tensor.defined()) spread_items(tensor.data, tensor.bytes(), p.shape()[0]);
    }
  }
}

void ParameterStore::allocate(Device device, bool inference) {
  for (const Part& part : parts()) {
    for (Parameter& parameter : parameters_) part.tensor(parameter) = {};  // left by a dry plan
  }
  std::vector<Places> all;
  for (const Part& part : parts()) all.push_back(places_of(part, !inference));
  // Several threads commit each buffer of host memory (core/memory/host_buffer.h); the driver pins several buffers at a
  // time.
  std::vector<std::future<HostBuffer>> host;
  for (const Places& places : all) {
    host.push_back(std::async(places.pinned_bytes > 0 ? std::launch::async : std::launch::deferred,
                              [device, bytes = places.pinned_bytes] { return HostBuffer(device, bytes); }));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const Part& part = parts()[i];
    const Places& places = all[i];
    // One allocation for all of a kind: a GPU rounds each up to 2 MiB, and clears it.
    buffers_.emplace_back(is_planned(device) ? device : Device{}, places.on_host_bytes);
    buffers_.emplace_back(device, places.bytes);
    const Buffer &on_host = *(buffers_.end() - 2), &on_device = buffers_.back();
    host_buffers_.push_back(host[i].get());
    const auto at = [&](const Home& home, const Shape& shape, DType dtype) {
      switch (home.memory) {
        case Home::Memory::kDevice:
          return on_device.tensor(shape, dtype, home.offset);
        case Home::Memory::kPinned:
          return host_buffers_.back().tensor(shape, dtype, home.offset);
        case Home::Memory::kHost:
          break;
      }
      return on_host.tensor(shape, dtype, home.offset);
    };
    for (const Places::Place& place : places.list) {
      part.tensor(*by_name_.at(place.parameter->name())) = at(place.home, place.shape, place.dtype);
    }
    for (const Places::OfBucket& place : places.buckets) {
      buckets_[place.index].*part.of_bucket = at(place.home, {place.elements}, place.dtype);
    }
  }
  if (!is_planned(device)) spread_experts();
  for (ValueMemory* memory : memories()) {
    memory->allocate(device);
    memory->for_each([](Parameter& p, const ValueTensors& value) {
      p.value_.stored_.payload = value.payload;
      p.value_.stored_.scales = value.scales;
      p.value_.present_ = value.present;
    });
  }
  present_stored_values();
}

void ParameterStore::allocate_trainable_values(Device device) {
  for (Parameter* parameter : trainable()) {
    buffers_.emplace_back(parameter->value().home().host_computed ? Device{} : device,
                          static_cast<size_t>(parameter->shape().numel()) * size_of(parameter->value().dtype()));
    parameter->value_.stored_.payload = buffers_.back().tensor(parameter->shape(), parameter->value().dtype());
  }
  present_stored_values();
}

void ParameterStore::allocate_dry(Device device) {
  std::byte* const address = kNoMemory;
  for (const Part& part : parts()) {
    for (Parameter& parameter : parameters_) {
      const Need need = part.need(parameter, parameter.trainable());
      const bool in_host =
          parameter.value().home().host_computed || (part.in_host != nullptr && part.in_host(*this, parameter));
      if (need) part.tensor(parameter) = {address, need->second, need->first, in_host ? Device{} : device};
    }
  }
  for (Parameter& p : parameters_) {
    if (!is_apart(p)) continue;
    const auto at = [&](const Need& need) {
      return need ? Tensor{address, need->second, need->first, p.value().home().host_computed ? Device{} : device}
                  : Tensor{};
    };
    p.value_.stored_ = {.slice = {}, .payload = at(need_of(stored_payload(p))), .scales = at(scales_of_value(p))};
    p.value_.present_ = p.value().home().brought ? at(need_of(whole_payload(p))) : Tensor{};
  }
  present_stored_values();
}

}  // namespace hone
