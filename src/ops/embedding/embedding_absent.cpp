// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of embedding_cuda.cu.
#include "ops/embedding/embedding.h"

namespace hone::cuda {

void embedding_grad(const Context& context, const EmbeddingGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  constexpr int64_t kChunk = 2048, kWindow = 32;
  const int64_t rows = args.tokens.numel();
  ArenaScope scratch(context.scratch());
  scratch.take({(rows + kChunk - 1) / kChunk * kChunk}, DType::kI64);                 // keys
  scratch.take({rows}, DType::kI64);                                                  // sorted
  scratch.take({(rows + kWindow - 1) / kWindow, args.dw.dst.shape[1]}, DType::kF32);  // partial sums
}

}  // namespace hone::cuda
