// The build without CUDA: the kernels of the LM head, which take no scratch memory.
#include "ops/linear_cross_entropy/logits_chunk_cuda.h"

namespace hone::cuda {

void scatter_rows(const Context& context, const Tensor&, const Tensor&, const Tensor&) {
  HONE_ASSERT(context.dry(), "built without CUDA");
}

void differentiate_chunk(const Context& context, const LinearCrossEntropyArgs&, const LogitsChunk&) {
  HONE_ASSERT(context.dry(), "built without CUDA");
}

void add_loss_totals(const Context& context, const LinearCrossEntropyArgs&, const Tensor&) {
  HONE_ASSERT(context.dry(), "built without CUDA");
}

}  // namespace hone::cuda
