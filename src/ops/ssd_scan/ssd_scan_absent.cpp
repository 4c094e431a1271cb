// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of *_cuda.cu.
#include "ops/ssd_scan/ssd_scan.h"

namespace hone::cuda {

namespace {

int64_t chunk_rows(const SsdScanArgs& args) { return args.xbc.dtype == DType::kBF16 ? kSsdChunk : kSsdChunk / 2; }

/// Chunks of all documents.
int64_t chunk_items(const SsdScanArgs& args) {
  return args.xbc.shape[0] / chunk_rows(args) + args.sequences.num_documents;
}

/// SsdScratch.
void take_states(ArenaScope& memory, const SsdScanArgs& args, bool backward) {
  const SsdHeads& heads = args.heads;
  const Shape states{args.xbc.shape[0] / chunk_rows(args), heads.num_heads, heads.state_size, heads.head_dim};
  memory.take(states, DType::kF32);
  if (backward) memory.take(states, DType::kF32);
  memory.take({chunk_items(args), heads.num_heads}, DType::kF32);
}

}  // namespace

void ssd_scan(const Context& context, const SsdScanArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  if (args.state.s.defined()) return;
  ArenaScope memory(context.scratch());
  take_states(memory, args, false);
}

void ssd_scan_grad(const Context& context, const SsdScanGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  const SsdHeads& heads = args.forward.heads;
  ArenaScope memory(context.scratch());
  take_states(memory, args.forward, true);
  memory.take({heads.blocks(), args.dout.shape[0], 2 * heads.keys()}, DType::kF32);
  for (const GradDest& weight : {args.da_log, args.ddt_bias, args.dd}) {
    if (weight.wanted()) memory.take({chunk_items(args.forward), heads.num_heads}, DType::kF32);
  }
}

}  // namespace hone::cuda
