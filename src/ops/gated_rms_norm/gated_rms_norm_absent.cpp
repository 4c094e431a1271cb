// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of gated_rms_norm_cuda.cu.
#include "ops/gated_rms_norm/gated_rms_norm.h"

namespace hone::cuda {

void gated_rms_norm_grad(const Context& context, const GatedRmsNormGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  if (!args.dw.wanted()) return;
  constexpr int64_t kRowsPerChunk = 512;
  const int64_t dim = args.w.numel(), count = args.x.numel() / dim;
  ArenaScope scratch(context.scratch());
  scratch.take({(count + kRowsPerChunk - 1) / kRowsPerChunk, dim}, DType::kF32);
}

}  // namespace hone::cuda
