#include "ops/unpack_weights/unpack_weights.h"

#include "kernels/device_dispatch.h"

namespace hone {

void unpack_weights(const Context& context, const UnpackWeightsArgs& args) {
  HONE_ASSERT(args.codes.shape.rank() == 2 && args.codes.shape[1] == args.layout.bytes &&
              args.dst.numel() == args.codes.shape[0] * args.layout.elements());
  dispatch(context, args, &cpu::unpack_weights, HONE_CUDA_OP(unpack_weights));
}

}  // namespace hone
