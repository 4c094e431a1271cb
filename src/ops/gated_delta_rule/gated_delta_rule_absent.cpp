// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of *_cuda.cu.
#include <algorithm>

#include "kernels/cuda/tiers.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"

namespace hone::cuda {

namespace {

constexpr int64_t kDim = 128;  // the heads that the kernels on tensor cores have (delta_chunks_cuda.h)

bool on_tensor_cores(const Context& context, const DeltaRuleArgs& args) {
  return kernel_tiers(context).delta_rule == Tier::kSm80 && args.qkv.dtype == DType::kBF16 &&
         args.heads.key_dim == kDim && args.heads.value_dim == kDim && !args.state.s.defined();
}

/// DeltaScratch.
void take_chunks(ArenaScope& memory, const DeltaRuleArgs& args, bool backward) {
  const int64_t tokens = args.qkv.shape[0], heads = args.heads.num_value_heads;
  memory.take({tokens, heads, 4}, DType::kF32);             // scales
  memory.take({tokens, heads, kDeltaChunk}, DType::kBF16);  // p
  memory.take({tokens, heads, kDim}, DType::kBF16);         // w
  memory.take({tokens, heads, kDim}, DType::kBF16);         // u
  if (!backward) return;
  memory.take({tokens, heads, kDeltaChunk}, DType::kBF16);               // inverse
  memory.take({tokens, heads, kDim}, DType::kBF16);                      // du
  memory.take({tokens / kDeltaChunk, heads, kDim, kDim}, DType::kBF16);  // states
  memory.take({tokens / kDeltaChunk, heads, kDim, kDim}, DType::kBF16);  // dstates
}

/// Parts of the gradients of a_log and dt_bias, one for each of `parts`.
void take_parts(ArenaScope& memory, const DeltaRuleGradArgs& args, int64_t parts) {
  const int64_t heads = args.forward.heads.num_value_heads;
  if (args.da_log.wanted()) memory.take({parts, heads}, DType::kF32);
  if (args.ddt_bias.wanted()) memory.take({parts, heads}, DType::kF32);
}

}  // namespace

void gated_delta_rule(const Context& context, const DeltaRuleArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  if (!on_tensor_cores(context, args)) return;
  ArenaScope memory(context.scratch());
  take_chunks(memory, args, false);
}

void gated_delta_rule_grad(const Context& context, const DeltaRuleGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  const DeltaHeads& heads = args.forward.heads;
  const int64_t tokens = args.forward.qkv.shape[0], documents = args.forward.sequences.num_documents;
  ArenaScope memory(context.scratch());
  if (on_tensor_cores(context, args.forward)) {
    take_chunks(memory, args.forward, true);
    return take_parts(memory, args, tokens / kDeltaChunk + documents);
  }
  constexpr int64_t kMaxBlocks = 256;
  const int64_t of_block = kDeltaChunk * (5 * heads.key_dim + 4 * heads.value_dim + 5 * kDeltaChunk) +
                           heads.group() * heads.key_dim * heads.value_dim;
  memory.take({tokens / kDeltaChunk, heads.num_value_heads, heads.key_dim, heads.value_dim}, DType::kF32);
  memory.take({std::min(documents * heads.num_key_heads, kMaxBlocks), of_block}, DType::kF32);
  take_parts(memory, args, documents);
}

}  // namespace hone::cuda
