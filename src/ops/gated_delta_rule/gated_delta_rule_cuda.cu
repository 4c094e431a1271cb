// Entry point of the gated delta rule on a GPU: chunks on tensor cores (delta_chunks_cuda.h) if they support the
// arguments, else the general kernels.
#include "ops/gated_delta_rule/delta_chunks_cuda.h"

namespace hone::cuda {

namespace {

bool note_chunks(const Context& context, bool served) {
  context.note_kernel("delta rule", served ? "sm80" : "general (slow)");
  return served;
}

}  // namespace

void gated_delta_rule(const Context& context, const DeltaRuleArgs& args) {
  if (!note_chunks(context, delta_chunks_serve(context, args))) return delta_rule_general(context, args);
  ArenaScope memory(context.scratch());
  const DeltaScratch scratch(memory, args, false);
  if (context.dry() || args.qkv.shape[0] == 0) return;
  prepare_delta_chunks(context, args, scratch);
  scan_delta_chunks(context, args, scratch);
}

void gated_delta_rule_grad(const Context& context, const DeltaRuleGradArgs& args) {
  bool served = delta_chunks_serve(context, args.forward);
  for (const Tensor& tensor : {args.dout, args.dqkv.dst}) served = served && allows_vectors(tensor, kDeltaDim, 8);
  if (!note_chunks(context, served)) return delta_rule_general_grad(context, args);
  ArenaScope memory(context.scratch());
  const DeltaScratch scratch(memory, args.forward, true);
  if (!context.dry() && args.forward.qkv.shape[0] > 0) {
    prepare_delta_chunks(context, args.forward, scratch);
    scan_delta_chunks(context, args.forward, scratch);
    scan_delta_chunks_back(context, args, scratch);
  }
  delta_chunks_grad(context, args, scratch);
}

}  // namespace hone::cuda
