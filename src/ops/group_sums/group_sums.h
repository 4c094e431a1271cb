// group_sums: weighted sums of values by group, such as the loss of each data set.
#pragma once

#include "core/stream/context.h"

namespace hone {

/// sums[g] += (Σ w_i · v_i, Σ w_i) over the elements of group g, in float64. Values with weight 0 are not read, so
/// padding may be uninitialised. Deterministic: a fixed order on each device. No host synchronisation, no backward.
/// Asserts shapes and dtypes; elements with a group outside of the sums are ignored.
struct GroupSumsArgs {
  Tensor values;   ///< f32 [N]
  Tensor weights;  ///< f32 [N]
  Tensor groups;   ///< i32 [N], in [0, G)
  Tensor sums;     ///< f64 [G, 2]
};

void group_sums(const Context& context, const GroupSumsArgs& args);

namespace cpu {
void group_sums(const Context& context, const GroupSumsArgs& args);
}

namespace cuda {
void group_sums(const Context& context, const GroupSumsArgs& args);
}

}  // namespace hone
