// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of qk_norm_rope_backward_cuda.cu.
#include <algorithm>

#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace hone::cuda {

void qk_norm_rope_backward(const Context& context, const QkNormRopeBackwardArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  if (!args.dnorm.wanted()) return;
  constexpr int64_t kHeadsPerChunk = 512, kMaxChunks = 2048, kWarps = 8;
  const int64_t dim = args.forward.head_dim, tokens = args.dy.shape[0], heads = args.dy.shape[1] / dim;
  const int64_t of_warp = dim < 16 || dim > 512 ? 0 : 32 / (dim / 16);  // heads
  const int64_t items = of_warp == 0 ? 0 : tokens * ((heads + of_warp - 1) / of_warp);
  const int64_t general = (tokens * heads + kHeadsPerChunk - 1) / kHeadsPerChunk;
  ArenaScope scratch(context.scratch());
  scratch.take({std::max(std::min((items + kWarps - 1) / kWarps, kMaxChunks), general), dim}, DType::kF32);
}

}  // namespace hone::cuda
