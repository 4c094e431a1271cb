// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of causal_conv_cuda.cu.
#include "ops/causal_conv/causal_conv.h"

namespace hone::cuda {

void causal_conv_grad(const Context& context, const CausalConvGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  constexpr int64_t kRows = 64;
  const int64_t chunks = (args.x.shape[0] + kRows - 1) / kRows;
  ArenaScope scratch(context.scratch());
  if (args.dw.wanted()) scratch.take({chunks, args.w.numel()}, DType::kF32);
  if (args.dbias.wanted()) scratch.take({chunks, args.bias.numel()}, DType::kF32);
}

}  // namespace hone::cuda
