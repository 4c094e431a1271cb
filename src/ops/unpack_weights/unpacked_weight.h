// UnpackedWeight: one use of a weight by an op that reads dense values, tiles or codes in place.
#pragma once

#include "ops/unpack_weights/unpack_weights.h"
#include "tape/weight.h"

namespace hone {

/// Views a weight for a product; a packed one is unpacked to scratch memory for the lifetime of this, unless the
/// product reads its codes, as its format says (WeightFormat::read_in_place) or `in_panels`:
///   const UnpackedWeight weight(tape.context(), *w);
///   linear(tape.context(), {…, .w = weight.view});
class UnpackedWeight {
 public:
  /// `in_panels`: the product unpacks it by itself, a few rows at a time.
  UnpackedWeight(const Context& context, const Weight& weight, WeightProduct product = WeightProduct::kLinear,
                 bool in_panels = false);

  WeightView view;

 private:
  ArenaScope scope_;
};

}  // namespace hone
