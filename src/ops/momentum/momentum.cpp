#include "ops/momentum/momentum.h"

#include "kernels/device_dispatch.h"

namespace hone {

void momentum(const Context& context, const MomentumArgs& args) {
  const auto is_float = [](const Tensor& tensor) {
    return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16;
  };
  const bool stateless = args.rule == MomentumRule::kSgd && args.beta1 == 0;
  for (const MomentumTensor& tensor : args.tensors) {
    const int64_t n = tensor.parameter.numel();
    HONE_ASSERT(is_float(tensor.parameter) && is_float(tensor.gradient) && tensor.gradient.numel() == n);
    HONE_ASSERT(tensor.m.defined() ? is_float(tensor.m) && tensor.m.numel() == n : stateless);
    HONE_ASSERT(!tensor.working_copy.defined() ||
                (tensor.parameter.dtype == DType::kF32 && tensor.working_copy.numel() == n));
  }
  dispatch(context, args, &cpu::momentum, HONE_CUDA_OP(momentum));
}

}  // namespace hone
