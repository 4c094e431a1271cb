#include "kernels/weight_gradient/weight_gradient.h"

#include "kernels/device_dispatch.h"

namespace hone {

void store_gradient(const Context& context, const StoreGradientArgs& args) {
  HONE_ASSERT(args.src.dtype == DType::kF32 && args.dst.dst.dtype == DType::kBF16);
  HONE_ASSERT(args.src.numel() == args.dst.dst.numel());
  HONE_ASSERT(args.dst.beta == 0.0f || (args.dst.beta == 1.0f && args.rounding.scalars != nullptr));
  dispatch(context, args, &cpu::store_gradient, HONE_CUDA_OP(store_gradient));
}

NarrowGradient::NarrowGradient(const Context& context, Weight& weight, bool op_rounds)
    : dest(weight.grad()), context_(context), scope_(context.scratch()) {
  if (!dest.wanted() || dest.dst.dtype == DType::kF32 || (op_rounds && dest.beta == 0.0f)) return;
  kept_ = dest;
  if (const auto* narrow = dynamic_cast<const NarrowGradWeight*>(&weight)) rounding_ = narrow->rounding();
  dest = {scope_.take(kept_.dst.shape, DType::kF32), 0.0f};
}

void NarrowGradient::store() const {
  if (kept_.wanted()) store_gradient(context_, {.src = dest.dst, .dst = kept_, .rounding = rounding_});
}

}  // namespace hone
