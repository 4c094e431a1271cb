// The build without CUDA: in a dry pass for a planned GPU, the scratch memory of *_cuda.cu.
#include "ops/ssd_scan/ssd_scratch.h"

namespace hone::cuda {

namespace {

void take_scratch(ArenaScope& memory, const Context& context, const SsdScanArgs& args, bool backward) {
  if (ssd_chunks_serve(context, args)) {
    SsdChunkScratch::take(memory, args, backward);
  } else {
    SsdGeneralScratch::take(memory, args, backward);
  }
}

}  // namespace

void ssd_scan(const Context& context, const SsdScanArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  if (args.state.s.defined()) return;
  ArenaScope memory(context.scratch());
  take_scratch(memory, context, args, false);
}

void ssd_scan_grad(const Context& context, const SsdScanGradArgs& args) {
  HONE_ASSERT(context.dry(), "built without CUDA");
  ArenaScope memory(context.scratch());
  take_scratch(memory, context, args.forward, true);
  SsdWeightParts::take(memory, args);
}

}  // namespace hone::cuda
