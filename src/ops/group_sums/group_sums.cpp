#include "ops/group_sums/group_sums.h"

#include "kernels/device_dispatch.h"

namespace hone {

void group_sums(const Context& context, const GroupSumsArgs& args) {
  HONE_ASSERT(args.values.shape == args.weights.shape && args.values.shape == args.groups.shape);
  HONE_ASSERT(args.groups.dtype == DType::kI32 && args.sums.dtype == DType::kF64);
  HONE_ASSERT(args.sums.shape.rank() == 2 && args.sums.shape[1] == 2);
  dispatch(context, args, &cpu::group_sums, HONE_CUDA_OP(group_sums));
}

}  // namespace hone
