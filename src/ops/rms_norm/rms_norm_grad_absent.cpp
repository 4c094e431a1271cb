// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of rms_norm_grad_cuda.cu.
#include "ops/rms_norm/rms_norm.h"

namespace hone::cuda {

void rms_norm_grad(const Context& context, const RmsNormGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  if (!args.dw.wanted()) return;
  constexpr int64_t kRowsPerChunk = 32;
  ArenaScope scratch(context.scratch());
  scratch.take({(args.x.shape[0] + kRowsPerChunk - 1) / kRowsPerChunk, args.x.shape[1]}, DType::kF32);
}

}  // namespace hone::cuda
