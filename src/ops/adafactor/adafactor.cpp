#include "ops/adafactor/adafactor.h"

#include "kernels/device_dispatch.h"

namespace hone {

namespace {

void check(const AdafactorTensor& tensor, bool has_m) {
  const auto is_float = [](const Tensor& t) { return t.dtype == DType::kF32 || t.dtype == DType::kBF16; };
  const int64_t n = tensor.parameter.numel();
  HONE_ASSERT(is_float(tensor.parameter) && is_float(tensor.gradient) && tensor.gradient.numel() == n);
  HONE_ASSERT(!tensor.working_copy.defined() ||
              (tensor.parameter.dtype == DType::kF32 && tensor.working_copy.numel() == n));
  HONE_ASSERT(tensor.m.defined() == has_m && (!has_m || (is_float(tensor.m) && tensor.m.numel() == n)));
  if (tensor.parameter.shape.rank() < 2) {
    HONE_ASSERT(tensor.v.dtype == DType::kF32 && tensor.v.numel() == n);
    return;
  }
  const AdafactorRows rows = AdafactorRows::of(tensor);
  HONE_ASSERT(tensor.rows.defined() && tensor.columns.defined());
  HONE_ASSERT(tensor.rows.dtype == DType::kF32 && tensor.rows.numel() == rows.rows());
  HONE_ASSERT(tensor.columns.dtype == DType::kF32 && tensor.columns.numel() == rows.matrices * rows.width);
}

}  // namespace

void adafactor(const Context& context, const AdafactorArgs& args) {
  for (const AdafactorTensor& tensor : args.tensors) check(tensor, args.beta1 > 0);
  dispatch(context, args, &cpu::adafactor, &cuda::adafactor);
}

}  // namespace hone
