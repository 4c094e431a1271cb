// KeptMemory: the memory of values that outlive their block's forward. Either all values are on the device, as a stack;
// or they are offloaded: the device has the values of three blocks, host memory those of all blocks. The values of a
// block are copied out during the forward of the next block, and copied back during the backward of block + 2.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/memory/arena.h"
#include "core/memory/host_buffer.h"
#include "core/stream/context.h"
#include "core/stream/copy_lane.h"

namespace hone {

class KeptMemory {
 public:
  explicit KeptMemory(Device device);

  /// Selects offloading. Call it before begin_dry().
  void offload(bool offload) { offloads_ = offload; }
  bool offloads() const { return offloads_; }

  void begin_dry();
  /// Allocates the high-water marks of the dry passes since begin_dry().
  void reserve();
  /// Bytes on the device and in host memory (dry: high-water marks).
  size_t bytes() const;
  size_t host_bytes() const { return offloads_ ? host_high_water_ : 0; }

  /// Begins a pass: blocks follow in the order of forward, then in reverse for backward.
  void begin_pass();
  void begin_forward(const Context& context, int32_t block);
  /// Uninitialised memory for a value of the block that runs forward. Its address is valid while the value is on the
  /// device.
  Tensor take(Shape shape, DType dtype) { return slot(block_).take(shape, dtype); }
  void end_forward(const Context& context);
  /// After this call, queued work may read the values of `block` and of the block before it.
  void begin_backward(const Context& context, int32_t block);
  void end_backward(int32_t block);

 private:
  /// A block uses its own values and those of block - 1, while those of block - 2 are copied.
  static constexpr int32_t kSlots = 3;
  struct Values {
    size_t mark = 0;      ///< its slot's mark before the first value
    Tensor device, host;  ///< all values of the block, as bytes
    bool present = true;  ///< on the device, or being copied to it
    int64_t arrival = 0;  ///< the copy that brings them back; 0: none
  };
  struct Lanes {
    explicit Lanes(Device device) : out(device), in(device) {}
    CopyLane out, in;
  };

  size_t slot_index(int32_t block) const { return offloads_ ? static_cast<size_t>(block % kSlots) : 0; }
  Arena& slot(int32_t block) { return slots_[slot_index(block)]; }
  void bring(const Context& context, int32_t block);

  Device device_;
  bool offloads_ = false;
  std::array<Arena, kSlots> slots_;
  HostBuffer host_;
  size_t host_top_ = 0, host_high_water_ = 0;
  std::vector<Values> values_;          // one for each block of the pass
  int32_t block_ = 0;                   // the block that runs forward
  std::array<int64_t, kSlots> left_{};  // the copy after which a slot's values are in host memory
  std::optional<Lanes> lanes_;
};

}  // namespace hone
