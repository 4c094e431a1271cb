// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of dora_cuda.cu.
#include "ops/dora/dora.h"

namespace hone::cuda {

void dora_scale_grad(const Context& context, const DoraScaleGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  const int64_t sums = (args.dmagnitude.wanted() ? 1 : 0) + (args.dbias.wanted() ? 1 : 0);
  if (sums == 0) return;
  constexpr int64_t kRowsPerChunk = 64;
  ArenaScope scratch(context.scratch());
  scratch.take({(args.dy.shape[0] + kRowsPerChunk - 1) / kRowsPerChunk, sums * args.dy.shape[1]}, DType::kF32);
}

}  // namespace hone::cuda
