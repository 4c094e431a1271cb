#include "ops/argmax/argmax.h"

#include "kernels/device_dispatch.h"

namespace hone {

void argmax(const Context& context, const ArgmaxArgs& args) {
  HONE_ASSERT(args.x.shape.rank() == 2 && args.x.shape[1] >= 1 && args.x.shape[1] <= INT32_MAX);
  HONE_ASSERT(args.ids.dtype == DType::kI32 && args.ids.shape == Shape{args.x.shape[0]});
  dispatch(context, args, &cpu::argmax, HONE_CUDA_OP(argmax));
}

}  // namespace hone
