#include "ops/cast/cast.h"

#include "kernels/device_dispatch.h"

namespace hone {

void cast(const Context& context, const CastArgs& args) {
  HONE_ASSERT(args.src.numel() == args.dst.numel());
  dispatch(context, args, &cpu::cast, HONE_CUDA_OP(cast));
}

void copy(const Context& context, Tensor src, Tensor dst) {
  HONE_ASSERT(src.numel() == dst.numel() && src.dtype == dst.dtype);
  dispatch(context, CastArgs{src, dst}, &cpu::copy, HONE_CUDA_OP(copy));
}

void fill_zero(const Context& context, const Tensor& tensor) {
  dispatch(context, tensor, &cpu::fill_zero, HONE_CUDA_OP(fill_zero));
}

}  // namespace hone
