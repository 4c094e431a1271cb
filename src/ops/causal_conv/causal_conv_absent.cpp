// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of causal_conv_cuda.cu.
#include "ops/causal_conv/causal_conv.h"

namespace hone::cuda {

void causal_conv_grad(const Context& context, const CausalConvGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  if (!args.dw.wanted()) return;
  constexpr int64_t kRows = 64;
  ArenaScope scratch(context.scratch());
  scratch.take({(args.x.shape[0] + kRows - 1) / kRows, args.w.numel()}, DType::kF32);
}

}  // namespace hone::cuda
