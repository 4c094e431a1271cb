// ValueHome: where a parameter's value is between uses, and where ops read it. Code that allocates, loads, saves, steps
// or fetches values reads this table, not the configuration. To add a home, add a row, choose it in
// ParameterStore::share_among(), and write a ValueMemory if the store does not lay out its memory.
#pragma once

#include <array>
#include <string_view>

namespace hone {

struct ValueHome {
  enum class Memory {
    kDevice,  ///< the device's
    kPinned,  ///< host memory from and to which the device copies
    kHost,    ///< host memory in which the CPU computes beside a device
    kApart,   ///< memory that a ValueMemory lays out (params/value_memory.h)
    kFile,    ///< none: the files of the checkpoint
  };

  std::string_view name;
  Memory memory = Memory::kDevice;
  bool sharded = false;        ///< each rank of a shard group keeps its part of the elements
  bool brought = false;        ///< ops read them in a slot that they are brought to for each use of their group
  bool host_computed = false;  ///< the CPU computes with them, and gradients and the optimizer's state are there too

  /// Whether they are copied from host memory to their slot.
  bool offloaded() const { return memory == Memory::kPinned; }
};

/// All homes; buckets of a group are in this order.
inline constexpr std::array kValueHomes = {
    ValueHome{.name = "resident"},
    ValueHome{.name = "sharded", .sharded = true, .brought = true},
    ValueHome{.name = "mapped", .memory = ValueHome::Memory::kApart, .sharded = true, .brought = true},
    ValueHome{.name = "host-computed", .memory = ValueHome::Memory::kHost, .host_computed = true},
    ValueHome{.name = "host-shared", .memory = ValueHome::Memory::kApart, .host_computed = true},
    ValueHome{.name = "offloaded", .memory = ValueHome::Memory::kPinned, .brought = true},
    ValueHome{.name = "offloaded shard", .memory = ValueHome::Memory::kPinned, .sharded = true, .brought = true},
    ValueHome{.name = "in file", .memory = ValueHome::Memory::kFile, .brought = true},
};

/// On the device, whole, where ops read them.
inline constexpr const ValueHome& kResident = kValueHomes[0];
/// Each rank's part is on its device; the whole is gathered for each use.
inline constexpr const ValueHome& kSharded = kValueHomes[1];
/// The same in memory that other ranks read (params/mapped_values.h).
inline constexpr const ValueHome& kMapped = kValueHomes[2];
/// In host memory, where the CPU computes with them.
inline constexpr const ValueHome& kHostComputed = kValueHomes[3];
/// The same, once for all ranks of a host (params/shared_values.h).
inline constexpr const ValueHome& kHostShared = kValueHomes[4];
/// In host memory, copied to the device for each use.
inline constexpr const ValueHome& kOffloaded = kValueHomes[5];
/// Each rank's part is in its host memory; it is copied and the whole gathered for each use.
inline constexpr const ValueHome& kOffloadedShard = kValueHomes[6];
/// In the checkpoint's files, read for each use (params/value_reader.h). There is no stored value.
inline constexpr const ValueHome& kInFile = kValueHomes[7];

}  // namespace hone
