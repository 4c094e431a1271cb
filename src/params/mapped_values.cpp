#include "params/mapped_values.h"

#include <iterator>

#include "core/base/aligned.h"
#include "core/base/error.h"
#include "params/parameter.h"
#include "params/payload.h"
#include "params/placement.h"

namespace hone {

namespace {

void map(AddressRange& range, size_t at, const MappableMemory& memory, size_t offset, size_t bytes) {
  const std::string problem = range.map(at, memory, offset, bytes);
  if (!problem.empty()) throw Error(ExitCode::kDeviceFailed, "memory cannot be mapped: " + problem, "", "");
}

/// The sizes between positions.
std::vector<size_t> slot_pieces(const std::set<size_t>& cuts) {
  std::vector<size_t> sizes;
  for (auto at = cuts.begin(), next = std::next(at); next != cuts.end(); ++at, ++next) sizes.push_back(*next - *at);
  return sizes;
}

}  // namespace

size_t mapping_granularity_of(const RankShare& share, Device device) {
  const bool maps = share.stage == ZeroStage::kValues && share.shard_ranks() > 1 && device.kind == DeviceKind::kCuda;
  return maps ? mapping_granularity(device) : 0;
}

MappedValues::MappedValues(std::span<Bucket> buckets, int rank, size_t granularity)
    : rank_(rank), granularity_(granularity) {
  std::map<int, std::map<size_t, size_t>> tops;  // one for each group in a slot
  for (Bucket& bucket : buckets) {
    if (&bucket.home() != &kMapped) continue;
    const std::vector<int64_t>& cuts = bucket.value_cuts();
    const ParameterGroup& group = *bucket.parameters.front()->group();
    Place place;
    place.element_bytes =
        bucket.kind.packed ? 1 : static_cast<int64_t>(size_of(bucket.parameters.front()->value().dtype()));
    const auto at = [&](int64_t element) { return static_cast<size_t>(element * place.element_bytes); };
    const auto r = static_cast<size_t>(rank);
    place.bytes = at(cuts.back());
    place.own_begin = at(cuts[r]);
    place.own_bytes = at(cuts[r + 1]) - place.own_begin;
    place.own_offset = own_bytes_;
    if (place.own_bytes > 0) own_pieces_.push_back(aligned(place.own_bytes, granularity));
    own_bytes_ += aligned(place.own_bytes, granularity);
    size_t& top = tops[bucket.layout.slot][group.index()];
    place.slot = bucket.layout.slot;
    place.slot_offset = top;
    std::set<size_t>& cuts_of_slot = slot_cuts_[place.slot];
    cuts_of_slot.insert(top);
    if (bucket.layout.in_place) cuts_of_slot.insert(top + place.own_begin);
    top += aligned(bucket.layout.in_place ? place.bytes - place.own_bytes : place.bytes, granularity);
    cuts_of_slot.insert(top);
    buckets_.push_back(&bucket);
    places_.emplace(&bucket, place);
  }
  if (own_pieces_.empty() && !buckets_.empty()) {  // a rank without a part takes part in the exchange of memory
    own_pieces_ = {granularity};
    own_bytes_ = granularity;
  }
}

ParameterBytes MappedValues::bytes() const {
  size_t bytes = own_bytes_;
  for (const auto& [slot, cuts] : slot_cuts_) bytes += *cuts.rbegin();
  return {.weights = static_cast<int64_t>(bytes)};
}

void MappedValues::allocate(Device device) {
  own_ = MappableMemory(device, own_pieces_);
  own_addresses_ = AddressRange(device, own_bytes_);
  map(own_addresses_, 0, own_, 0, own_bytes_);
  for (const auto& [slot, cuts] : slot_cuts_) slots_[slot] = MappableMemory(device, slot_pieces(cuts));
  for (Bucket* bucket : buckets_) {
    const Place& place = places_.at(bucket);
    const MappableMemory& slot = slots_.at(place.slot);
    AddressRange& range = addresses_.emplace_back(device, aligned(place.bytes, granularity_));
    const DType dtype = bucket->kind.packed ? DType::kU8 : bucket->parameters.front()->value().dtype();
    const auto tensor = [&](std::byte* data, size_t bytes) {
      return Tensor{data, dtype, {static_cast<int64_t>(bytes) / place.element_bytes}, device};
    };
    bucket->values = tensor(range.data(), place.bytes);
    if (bucket->layout.in_place) {
      const size_t own_end = place.own_begin + place.own_bytes;
      map(range, 0, slot, place.slot_offset, place.own_begin);
      map(range, place.own_begin, own_, place.own_offset, place.own_bytes);
      map(range, own_end, slot, place.slot_offset + place.own_begin, place.bytes - own_end);
      bucket->own_values = tensor(range.data() + place.own_begin, place.own_bytes);
    } else {
      map(range, 0, slot, place.slot_offset, aligned(place.bytes, granularity_));
      bucket->own_values = tensor(own_addresses_.data() + place.own_offset, place.own_bytes);
    }
  }
}

void MappedValues::for_each(const std::function<void(Parameter&, const ValueTensors&)>& place) const {
  for (const Bucket* bucket : buckets_) {
    const int64_t own_begin = bucket->value_cuts()[static_cast<size_t>(rank_)];
    for (size_t i = 0; i < bucket->parameters.size(); ++i) {
      Parameter& p = *bucket->parameters[i];
      const Slice own = p.share().own();
      const int64_t first = own.count > 0 ? bucket->position(i, own.begin) - own_begin : 0;
      place(p, {.payload = tensor_at(bucket->own_values, first, stored_payload(p)),
                .present = tensor_at(bucket->values, bucket->position(i, 0), whole_payload(p))});
    }
  }
}

}  // namespace hone
