#include "ops/cast/cast.h"
#include "ops/moe_experts/cuda/expert_rows_cuda.h"

namespace hone::cuda {

Tensor in_dtype(const Context& context, ArenaScope& scratch, const Tensor& weight, DType dtype) {
  if (weight.dtype == dtype) return weight;
  const Tensor converted = scratch.take(weight.shape, dtype);
  hone::cast(context, CastArgs{weight, converted});
  return converted;
}

}  // namespace hone::cuda
