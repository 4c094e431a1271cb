#include "ops/adamw/adamw.h"

#include "ops/device_dispatch.h"

namespace hone {

void adamw(const Context& context, const AdamwArgs& args) {
  for (const AdamwTensor& tensor : args.tensors) {
    const int64_t n = tensor.parameter.numel();
    HONE_ASSERT(tensor.m.numel() == n && tensor.v.numel() == n && tensor.gradient.numel() == n);
    HONE_ASSERT(tensor.m.dtype == tensor.v.dtype && tensor.m.dtype == args.tensors.front().m.dtype);
    HONE_ASSERT(!tensor.working_copy.defined() || tensor.working_copy.numel() == n);
  }
  dispatch(context, args, &cpu::adamw, HONE_CUDA_OP(adamw));
}

}  // namespace hone
