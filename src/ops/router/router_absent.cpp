// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of router_cuda.cu and
// router_grad_cuda.cu.
#include "kernels/cuda/low_rank/partial_sums_cuda.h"
#include "kernels/cuda/matmul/matmul_cuda.h"
#include "ops/router/router.h"
#include "ops/router/router_logits_cuda.h"

namespace hone::cuda {

void router(const Context& context, const RouterArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  constexpr int64_t kTokensPerBlock = 32;
  const int64_t tokens = args.x.shape[0], experts = args.weight.shape[0];
  ArenaScope scratch(context.scratch());
  const Tensor logits = scratch.take({tokens, experts}, DType::kF32);
  if (args.statistics.wanted()) {
    scratch.take({(tokens + kTokensPerBlock - 1) / kTokensPerBlock, 2 * experts + 2}, DType::kF32);
  }
  router_logits(context, args.x, args.weight, args.bias, logits);
}

void router_grad(const Context& context, const RouterGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  const int64_t tokens = args.x.shape[0], experts = args.weight.shape[0], hidden = args.weight.shape[1];
  if (!args.dx.wanted() && !args.dweight.wanted() && !args.dbias.wanted()) return;
  const bool narrow = args.x.dtype == DType::kBF16;
  const int64_t parts = args.weight.dtype == DType::kBF16 ? 2 : 3;
  ArenaScope scratch(context.scratch());
  const Tensor logits = scratch.take({tokens, experts}, DType::kF32);
  const Tensor dlogits = narrow ? scratch.take({tokens, parts * experts}, DType::kBF16) : logits;
  router_logits(context, args.x, args.weight, args.bias, logits);
  if (args.dbias.wanted()) sum_over_rows(context, logits, args.dbias);
  const DType operands = narrow ? DType::kBF16 : DType::kF32;
  if (args.dx.wanted()) {
    ArenaScope product(context.scratch());
    const Tensor weight = narrow ? product.take({parts * experts, hidden}, DType::kBF16) : args.weight;
    matmul(context, {.a = dlogits, .b = weight, .c = args.dx.dst, .operands = operands});
  }
  if (args.dweight.wanted()) {
    ArenaScope product(context.scratch());
    Tensor both = dlogits;
    if (narrow) both.shape = {tokens, 2 * experts};
    matmul(context, {.a = both,
                     .a_transposed = true,
                     .b = args.x,
                     .c = narrow ? product.take({2 * experts, hidden}, DType::kF32) : args.dweight.dst,
                     .operands = operands,
                     .a_pitch = dlogits.shape[1]});
  }
}

}  // namespace hone::cuda
