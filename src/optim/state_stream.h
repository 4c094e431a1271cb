// StateStream: steps tensors whose values or optimizer state are in host memory. Pieces are copied to device memory,
// stepped by an elementwise op, and copied back. Three pieces are in flight: copies in both directions overlap with the
// op. The results are those of one call for all elements.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/stream/context.h"
#include "core/stream/copy_lane.h"

namespace hone {

class StateStream {
 public:
  /// A tensor that an op reads or writes in a step; may be undefined.
  struct Field {
    Tensor* tensor;
    int64_t together = 1;  ///< parameter elements per element of the tensor: 256 for the scales of 8-bit moments
    bool read = true, written = true;
  };

  /// For work on `device`. `everything`: copies tensors in the device's own memory, too (for tests on a CPU).
  explicit StateStream(Device device, int64_t piece = kPiece, bool everything = false);

  /// Calls op(tensors) for the tensors on the device, then op(piece) for each piece of the others. fields(tensor) are
  /// the Fields of a T, the parameter's first; T::first_element is the first element of a piece. The pieces are in
  /// scratch memory.
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
  /// Elements of a piece: a multiple of the blocks of 8-bit moments; 300 MB of float32 masters and moments in 3 slots.
  static constexpr int64_t kPiece = int64_t{1} << 23;
  struct Slot {
    Tensor memory;     ///< bytes
    int64_t left = 0;  ///< the copy that returns its piece to host memory
  };
  struct Lanes {
    explicit Lanes(Device device) : in(device), out(device) {}
    CopyLane in, out;
  };

  bool in_host(const Tensor& tensor) const { return tensor.defined() && (everything_ || tensor.device != device_); }
  bool has_host_field(const std::vector<Field>& fields) const;
  int64_t piece_bytes(const std::vector<Field>& fields) const;
  void begin(const Context& context, ArenaScope& scratch, int64_t bytes);
  /// Narrows the fields to elements [first, first + count) of the parameter; fields in host memory become copies on the
  /// device.
  void bring(const Context& context, const std::vector<Field>& fields, int64_t first, int64_t count);
  void send_back(const Context& context);
  void finish(const Context& context);

  Device device_;
  int64_t piece_;
  bool everything_;
  std::optional<Lanes> lanes_;
  std::array<Slot, 3> slots_;
  size_t next_ = 0;                                 // the next slot
  std::vector<std::pair<Tensor, Tensor>> written_;  // fields to copy back: host memory, device memory
};

}  // namespace hone
