#include "ops/muon/muon.h"

namespace hone {

void muon(const Context& context, const MuonArgs& args) {
  const auto is_float = [](const Tensor& tensor) {
    return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16;
  };
  for (const MuonTensor& tensor : args.tensors) {
    const int64_t n = tensor.parameter.numel();
    HONE_ASSERT(tensor.rows > 0 && tensor.columns > 0 && n % (tensor.rows * tensor.columns) == 0);
    HONE_ASSERT(is_float(tensor.parameter) && is_float(tensor.gradient) && tensor.gradient.numel() == n);
    HONE_ASSERT(is_float(tensor.m) && tensor.m.numel() == n);
    HONE_ASSERT(!tensor.working_copy.defined() ||
                (tensor.parameter.dtype == DType::kF32 && tensor.working_copy.numel() == n));
  }
  HONE_ASSERT(context.device().kind == DeviceKind::kCpu);
  cpu::muon(context, args);
}

}  // namespace hone
