// SharedValues: host memory of values that the ranks of a host keep once and all read: those of frozen parameters on
// the host (kHostShared). Each rank allocates a part, which has whole parameters, and fills it; every rank maps
// the parts of all to the same places of one range of addresses (core/memory/mapped_memory.h). So nothing is copied or
// gathered, and the memory is freed when the last rank has ended, however it ends.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/memory/mapped_memory.h"
#include "params/slice.h"
#include "params/value_memory.h"

namespace hone {

class Parameter;

class SharedValues final : public ValueMemory {
 public:
  /// Plans the memory of these parameters for the rank at a place among the `ranks` of a host, which all plan the same
  /// parameters in one order. The parameters are whole, with their formats set, and must outlive this object.
  SharedValues(std::vector<Parameter*> parameters, int place, int ranks);

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// Whether this rank fills the value of a parameter: loads, draws or reorders it.
  bool fills(const Parameter& parameter) const { return spans_.at(&parameter).place == place_; }
  int place() const { return place_; }
  int ranks() const { return static_cast<int>(parts_.size()); }
  /// Bytes of all parts: what a host has once.
  int64_t all_bytes() const { return parts_.back().end(); }
  /// What a rank adds to that, evenly divided.
  ParameterBytes bytes() const override;

  /// Allocates this rank's part, in its place, each parameter's experts spread over NUMA nodes (spread_items). Where
  /// the parts of other ranks are, there is no memory until map().
  void allocate(Device device) override;
  void for_each(const std::function<void(Parameter&, const ValueTensors&)>& place) const override;
  /// This rank's part, for other ranks.
  const MappableMemory& own() const { return own_; }
  /// Maps the part of the rank at `place`. Returns the reason if that fails.
  std::string map(int place, const MappableMemory& part);
  /// Whether all parts have been mapped.
  bool complete() const { return mapped_ == ranks(); }

 private:
  struct Span {
    int place = 0;                   ///< the place of the rank that owns it
    size_t payload = 0, scales = 0;  ///< where they begin
  };

  std::vector<Parameter*> parameters_;
  std::map<const Parameter*, Span> spans_;
  std::vector<Slice> parts_;  // bytes of the ranks' parts, by place
  int place_, mapped_ = 0;
  MappableMemory own_;
  AddressRange addresses_;
  std::byte* data_ = nullptr;  // the first of them, or of a plan's
};

}  // namespace hone
