#include "ops/unpack_weights/unpacked_weight.h"

#include "core/stream/profiler.h"

namespace hone {

UnpackedWeight::UnpackedWeight(const Context& context, const Weight& weight, WeightProduct product, bool in_panels)
    : scope_(context.scratch()) {
  const std::optional<PackedWeight> packed = weight.packed_view();
  if (!packed) {
    view = weight.view();
    return;
  }
  if (in_panels || packed->format->read_in_place(product, context.device())) {
    view = {.payload = {nullptr, packed->dtype, weight.local_shape(), packed->chunks.device},
            .format = packed->format,
            .packed = packed};
    return;
  }
  const ProfileScope profiled(context, OpGroup::kMemoryBound, "unpack_weights");
  view.payload = scope_.take(weight.local_shape(), packed->dtype);
  unpack_weights(context, {packed->layout, packed->chunks, view.payload});
}

}  // namespace hone
