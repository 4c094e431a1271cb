#include "ops/adamw/adamw.h"

#include "ops/device_dispatch.h"

namespace hone {

void adamw(const Context& context, const AdamwArgs& args) {
  const int64_t n = args.parameter.numel();
  HONE_ASSERT(args.m.numel() == n && args.v.numel() == n && args.gradient.numel() == n);
  HONE_ASSERT(!args.working_copy.defined() || args.working_copy.numel() == n);
  dispatch(context, args, &cpu::adamw, HONE_CUDA_OP(adamw));
}

}  // namespace hone
