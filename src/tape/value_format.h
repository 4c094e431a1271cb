// ValueFormat: how a tape keeps values that cross blocks from forward until backward, in fewer bytes than they have.
#pragma once

#include <cstdint>

#include "core/stream/context.h"

namespace hone {

class ValueFormat {
 public:
  virtual ~ValueFormat() = default;
  /// Bytes that a value of this shape is kept in.
  virtual int64_t bytes(const Shape& shape) const = 0;
  /// Rounds `value` and writes it to `packed`, u8 [bytes(value.shape)]. Deterministic.
  virtual void pack(const Context& context, const Tensor& value, const Tensor& packed) const = 0;
  /// Writes the rounded value, in the dtype of `value`. Deterministic.
  virtual void unpack(const Context& context, const Tensor& packed, const Tensor& value) const = 0;
};

}  // namespace hone
