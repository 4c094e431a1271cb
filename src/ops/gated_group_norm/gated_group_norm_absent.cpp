// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of gated_group_norm_cuda.cu.
#include "ops/gated_group_norm/gated_group_norm.h"

namespace hone::cuda {

void gated_group_norm_grad(const Context& context, const GatedGroupNormGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  if (!args.dw.wanted()) return;
  constexpr int64_t kRowsPerChunk = 32;
  ArenaScope scratch(context.scratch());
  scratch.take({(args.dy.shape[0] + kRowsPerChunk - 1) / kRowsPerChunk, args.forward.w.numel()}, DType::kF32);
}

}  // namespace hone::cuda
