#include "params/shared_values.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/aligned.h"
#include "core/base/error.h"
#include "core/cpu/numa.h"
#include "core/cuda/planned_device.h"
#include "core/memory/arena.h"
#include "core/memory/buffer.h"
#include "params/payload.h"

namespace hone {

namespace {

size_t aligned_bytes_of(const FormatTensor& tensor) {
  return aligned(static_cast<size_t>(bytes_of(tensor)), Arena::kAlignment);
}

/// Bytes of payload and scales.
size_t value_bytes(const Parameter& p) {
  const std::optional<FormatTensor> scales = value_scales(p);
  return aligned_bytes_of(whole_payload(p)) + (scales ? aligned_bytes_of(*scales) : 0);
}

}  // namespace

SharedValues::SharedValues(std::vector<Parameter*> parameters, int place, int ranks)
    : parameters_(std::move(parameters)), place_(place) {
  HONE_ASSERT(place >= 0 && place < ranks && !parameters_.empty());
  size_t all = 0;
  for (const Parameter* p : parameters_) all += value_bytes(*p);
  const size_t granularity = mapping_granularity({});
  size_t next = 0, before = 0, end = 0;
  for (int r = 0; r < ranks; ++r) {
    const size_t begin = end;
    // A parameter belongs to the rank in whose even share of the bytes its middle is.
    const size_t until = all * static_cast<size_t>(r + 1) / static_cast<size_t>(ranks);
    for (; next < parameters_.size(); ++next) {
      const Parameter& p = *parameters_[next];
      const size_t bytes = value_bytes(p);
      if (before + bytes / 2 >= until && r + 1 < ranks) break;
      spans_[&p] = {r, end, end + aligned_bytes_of(whole_payload(p))};
      end += bytes;
      before += bytes;
    }
    end = aligned(std::max(end, begin + 1), granularity);  // a rank without parameters takes part in the exchange
    parts_.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)});
  }
}

ParameterBytes SharedValues::bytes() const {
  const int64_t part = (all_bytes() + ranks() - 1) / ranks();
  return {.host = part, .on_host = part, .shared = part};
}

void SharedValues::allocate(Device device) {
  if (is_planned(device)) {
    data_ = kNoMemory;
    return;
  }
  own_ = MappableMemory({}, {static_cast<size_t>(parts_[static_cast<size_t>(place_)].count)});
  addresses_ = AddressRange({}, static_cast<size_t>(all_bytes()));
  data_ = addresses_.data();
  mapped_ = 0;
  if (!map(place_, own_).empty()) throw_out_of_host_memory(own_.size());
  for_each([this](const Parameter& p, const ValueTensors& value) {
    if (!fills(p)) return;
    spread_items(value.payload.data, value.payload.bytes(), p.shape()[0]);
    if (value.scales.defined()) spread_items(value.scales.data, value.scales.bytes(), p.shape()[0]);
  });
}

void SharedValues::for_each(const std::function<void(Parameter&, const ValueTensors&)>& place) const {
  for (Parameter* p : parameters_) {
    const Span& span = spans_.at(p);
    const auto at = [this](size_t offset, const FormatTensor& tensor) {
      return Tensor{data_ + offset, tensor.dtype, tensor.shape, Device{}};
    };
    const std::optional<FormatTensor> scales = value_scales(*p);
    place(*p, {.payload = at(span.payload, whole_payload(*p)), .scales = scales ? at(span.scales, *scales) : Tensor{}});
  }
}

std::string SharedValues::map(int place, const MappableMemory& part) {
  const Slice& bytes = parts_[static_cast<size_t>(place)];
  HONE_ASSERT(part.size() == static_cast<size_t>(bytes.count), "the ranks of a host plan the same memory");
  std::string problem = addresses_.map(static_cast<size_t>(bytes.begin), part, 0, part.size());
  if (problem.empty()) ++mapped_;
  return problem;
}

}  // namespace hone
