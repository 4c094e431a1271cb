// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of grad_norm_cuda.cu.
#include "ops/grad_norm/grad_norm.h"

namespace hone::cuda {

void sum_of_squares(const Context& context, const SumOfSquaresArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  constexpr int64_t kChunk = 65536;
  int64_t chunks = 0;
  for (const Tensor& gradient : args.gradients) chunks += (gradient.numel() + kChunk - 1) / kChunk;
  ArenaScope scratch(context.scratch());
  scratch.take({chunks}, DType::kF64);  // sums
  scratch.take({chunks}, DType::kI32);  // owners
}

}  // namespace hone::cuda
