#include "ops/adamw/adamw.h"

#include "kernels/device_dispatch.h"
#include "ops/adamw/dynamic_code.h"

namespace hone {

namespace {

bool is_float(const Tensor& tensor) { return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16; }

void check(const Moment& moment, int64_t n, DType codes) {
  HONE_ASSERT(moment.values.numel() == n && (is_float(moment.values) || moment.values.dtype == codes));
  HONE_ASSERT(is_float(moment.values) || moment.scales.numel() == (n + kMomentBlock - 1) / kMomentBlock);
}

}  // namespace

void adamw(const Context& context, const AdamwArgs& args) {
  for (const AdamwTensor& tensor : args.tensors) {
    const int64_t n = tensor.parameter.numel();
    check(tensor.m, n, DType::kI8);
    check(tensor.v, n, DType::kU8);
    HONE_ASSERT(is_float(tensor.parameter) && is_float(tensor.gradient) && tensor.gradient.numel() == n);
    HONE_ASSERT(!tensor.working_copy.defined() ||
                (tensor.parameter.dtype == DType::kF32 && tensor.working_copy.numel() == n));
  }
  dispatch(context, args, &cpu::adamw, HONE_CUDA_OP(adamw));
}

}  // namespace hone
