#include "ops/grad_norm/grad_norm.h"

#include "kernels/device_dispatch.h"

namespace hone {

void sum_of_squares(const Context& context, const SumOfSquaresArgs& args) {
  dispatch(context, args, &cpu::sum_of_squares, &cuda::sum_of_squares);
}

void finish_grad_norm(const Context& context, const FinishGradNormArgs& args) {
  dispatch(context, args, &cpu::finish_grad_norm, HONE_CUDA_OP(finish_grad_norm));
}

}  // namespace hone
