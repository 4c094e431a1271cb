#include "params/shared_values.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/aligned.h"
#include "core/base/error.h"
#include "core/cpu/numa.h"
#include "core/memory/arena.h"
#include "core/memory/buffer.h"
#include "params/parameter.h"

namespace hone {

namespace {

size_t bytes_of(const FormatTensor& tensor) {
  return static_cast<size_t>(tensor.shape.numel()) * size_of(tensor.dtype);
}

FormatTensor payload_of(const Parameter& p) {
  return p.format().payload(p.packed() ? p.stack() : p.shape(), p.dtype());
}

size_t aligned_bytes_of(const FormatTensor& tensor) { return aligned(bytes_of(tensor), Arena::kAlignment); }

/// Bytes of payload and scales.
size_t bytes_of(const Parameter& p) {
  const std::optional<FormatTensor> scales = p.format().scales(p.shape());
  return aligned_bytes_of(payload_of(p)) + (scales ? aligned_bytes_of(*scales) : 0);
}

}  // namespace

SharedValues::SharedValues(std::vector<Parameter*> parameters, int place, int ranks)
    : parameters_(std::move(parameters)), place_(place) {
  HONE_ASSERT(place >= 0 && place < ranks && !parameters_.empty());
  size_t all = 0;
  for (const Parameter* p : parameters_) all += bytes_of(*p);
  const size_t granularity = mapping_granularity({});
  size_t next = 0, before = 0, end = 0;
  for (int r = 0; r < ranks; ++r) {
    const size_t begin = end;
    // A parameter belongs to the rank in whose even share of the bytes its middle is.
    const size_t until = all * static_cast<size_t>(r + 1) / static_cast<size_t>(ranks);
    for (; next < parameters_.size(); ++next) {
      const Parameter& p = *parameters_[next];
      const size_t bytes = bytes_of(p);
      if (before + bytes / 2 >= until && r + 1 < ranks) break;
      spans_[&p] = {r, end, end + aligned_bytes_of(payload_of(p))};
      end += bytes;
      before += bytes;
    }
    end = aligned(std::max(end, begin + 1), granularity);  // a rank without parameters takes part in the exchange
    parts_.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)});
  }
}

void SharedValues::allocate() {
  own_ = MappableMemory({}, {static_cast<size_t>(parts_[static_cast<size_t>(place_)].count)});
  addresses_ = AddressRange({}, static_cast<size_t>(all_bytes()));
  mapped_ = 0;
  if (!map(place_, own_).empty()) throw_out_of_host_memory(own_.size());
  for (const Parameter* p : parameters_) {
    if (!owns(*p)) continue;
    spread_items(data() + payload_offset(*p), bytes_of(payload_of(*p)), p->shape()[0]);
    if (const auto scales = p->format().scales(p->shape())) {
      spread_items(data() + scales_offset(*p), bytes_of(*scales), p->shape()[0]);
    }
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
