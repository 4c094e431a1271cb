// MappedValues: device memory of the values that ranks shard (ZeroStage::kValues). This rank's parts lie one after
// another in one memory, which other ranks can read; slots, which groups use in turn, have room for the parts of other
// ranks. The addresses of a bucket's values are put together from both (core/memory/mapped_memory.h): its own part is
// in its place at all times, and is never copied. A bucket whose parts are not multiples of the granularity has a slot
// for all parts, into which its own is copied.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/memory/mapped_memory.h"
#include "params/bucket.h"
#include "params/value_memory.h"

namespace hone {

/// RankShare::mapping_granularity of ranks on this device: GPUs map the values that ranks shard.
size_t mapping_granularity_of(const RankShare& share, Device device);

class MappedValues final : public ValueMemory {
 public:
  /// Plans the memory of the buckets that shard values on the device, for a rank. They must outlive this object.
  MappedValues(std::span<Bucket> buckets, int rank, size_t granularity);

  ParameterBytes bytes() const override;
  /// Also sets Bucket::values and own_values.
  void allocate(Device device) override;
  void for_each(const std::function<void(Parameter&, const ValueTensors&)>& place) const override;

  /// This rank's parts, and where those of a bucket begin.
  const MappableMemory& own() const { return own_; }
  size_t own_offset(const Bucket& bucket) const { return places_.at(&bucket).own_offset; }

 private:
  struct Place {
    int64_t element_bytes = 0;
    size_t bytes = 0, own_begin = 0, own_bytes = 0;  ///< all parts; this rank's part, in the bucket
    size_t own_offset = 0;                           ///< in own_
    int slot = 0;
    size_t slot_offset = 0;
  };

  int rank_;
  size_t granularity_;
  std::vector<Bucket*> buckets_;
  std::map<const Bucket*, Place> places_;
  size_t own_bytes_ = 0;
  std::vector<size_t> own_pieces_;  // one number for each bucket
  /// Positions in each slot where what a bucket maps begins or ends. Memory is mapped in whole pieces, so a slot has a
  /// piece between each two: the layers of a model share them, and a driver does not map 100,000 pieces.
  std::map<int, std::set<size_t>> slot_cuts_;
  MappableMemory own_;
  std::map<int, MappableMemory> slots_;
  AddressRange own_addresses_;
  std::vector<AddressRange> addresses_;  // one range for each bucket
};

}  // namespace hone
