#include "params/parameter_value.h"

#include "formats/tiled_weights.h"

namespace hone {

void ParameterValue::hold_in(const WeightFormat& format) {
  HONE_ASSERT(format.fits(spec_.shape) && format_->dense() && !stored_.payload.defined(), spec_.name);
  format_ = &format;
  if (!format.packed()) dtype_ = format.payload(spec_.shape, dtype_).dtype;
}

void ParameterValue::order_as_tiles(ThreadPool& pool) {
  HONE_ASSERT(!home_->brought && format_->dense(), spec_.name);
  if (filled_here_) hone::order_as_tiles(pool, stored().payload);
  format_ = &tile_format();
}

}  // namespace hone
