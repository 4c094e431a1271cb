// StateStream: has an optimizer's op step tensors whose state is in host memory. Pieces of the state come to device
// memory, are stepped there and go back; three pieces are under way, so that copies run in both directions at once and
// beside the op. The op steps elements one by one, so the results are those of one call for all.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/copy_lane.h"

namespace hone {

class StateStream {
 public:
  /// A tensor of what an op steps together; undefined: the op has none.
  struct Field {
    Tensor* tensor;
    int64_t together = 1;  ///< elements of the parameter that share one of its: 256 of the scales of 8-bit moments
    bool read = true, written = true;
  };

  /// For work on `device`. `everything`: what is in its own memory is copied, too (tests on a CPU).
  explicit StateStream(Device device, int64_t piece = kPiece, bool everything = false);

  /// Calls op(tensors) with what is on the device, then op(piece) for pieces of the others. fields(tensor) are those of
  /// a T, the first of them of the parameter; T::first_element is where a piece begins. Scratch memory holds the
  /// pieces.
  template <class T, class Fields, class Op>
  void step(const Context& context, const std::vector<T>& tensors, const Fields& fields, const Op& op) {
    std::vector<T> resident, streamed;
    for (T tensor : tensors) (has_host_field(fields(tensor)) ? streamed : resident).push_back(tensor);
    if (!resident.empty()) op(resident);
    if (streamed.empty()) return;
    int64_t bytes = 0;
    for (T tensor : streamed) bytes = std::max(bytes, piece_bytes(fields(tensor)));
    ArenaScope scratch(context.scratch());
    begin(context, scratch, bytes);
    for (const T& tensor : streamed) {
      T whole = tensor;
      const int64_t elements = fields(whole).front().tensor->numel();
      for (int64_t first = 0; first < elements; first += piece_) {
        T part = tensor;
        part.first_element += first;
        bring(context, fields(part), first, std::min(piece_, elements - first));
        op(std::vector<T>{part});
        send_back(context);
      }
    }
    finish(context);
  }

 private:
  /// A multiple of the blocks of 8-bit moments; 300 MB of float32 masters and moments in three slots.
  static constexpr int64_t kPiece = int64_t{1} << 23;
  struct Slot {
    Tensor memory;     ///< bytes
    int64_t left = 0;  ///< the copy after which its piece is in host memory
  };
  struct Lanes {
    explicit Lanes(Device device) : in(device), out(device) {}
    CopyLane in, out;
  };

  bool in_host(const Tensor& tensor) const { return tensor.defined() && (everything_ || tensor.device != device_); }
  bool has_host_field(const std::vector<Field>& fields) const;
  int64_t piece_bytes(const std::vector<Field>& fields) const;
  void begin(const Context& context, ArenaScope& scratch, int64_t bytes);
  /// Cuts the fields to elements [first, first + count) of the parameter, those in host memory to copies on the device.
  void bring(const Context& context, const std::vector<Field>& fields, int64_t first, int64_t count);
  void send_back(const Context& context);
  void finish(const Context& context);

  Device device_;
  int64_t piece_;
  bool everything_;
  std::optional<Lanes> lanes_;
  std::array<Slot, 3> slots_;
  size_t next_ = 0;                                 // of the slots
  std::vector<std::pair<Tensor, Tensor>> written_;  // of the piece that is at work: host memory, device memory
};

}  // namespace hone
