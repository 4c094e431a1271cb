// Entry point of the state-space scan on a GPU: chunks on tensor cores (ssd_chunks_cuda.h) if they serve the arguments,
// else the general kernels. Generation continues token by token.
#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "ops/ssd_scan/ssd_chunks_cuda.h"
#include "ops/ssd_scan/ssd_general_cuda.h"

namespace hone::cuda {

namespace {

/// Notes which kernels serve the arguments; `rows` are the tensors with rows of heads.
bool note_chunks(const Context& context, const SsdScanArgs& args, std::initializer_list<Tensor> rows) {
  bool served = ssd_chunks_serve(context, args);
  for (const Tensor& tensor : rows) served = served && allows_vectors(tensor, kSsdDim, 8);
  context.note_kernel("state-space scan", served ? "sm80" : "general (slow)");
  return served;
}

}  // namespace

void ssd_scan(const Context& context, const SsdScanArgs& args) {
  if (args.state.s.defined()) return continue_ssd_states(context, args);
  const bool by_chunks = note_chunks(context, args, {args.xbc, args.out});
  ArenaScope memory(context.scratch());
  const bool idle = context.dry() || args.xbc.shape[0] == 0;
  if (by_chunks) {
    const auto scratch = SsdChunkScratch::take(memory, args, false);
    if (!idle) scan_ssd_chunks(stream_of(context), args, scratch);
  } else {
    const auto scratch = SsdGeneralScratch::take(memory, args, false);
    if (!idle) ssd_scan_general(context, args, scratch);
  }
}

void ssd_scan_grad(const Context& context, const SsdScanGradArgs& args) {
  const SsdScanArgs& forward = args.forward;
  const bool by_chunks = note_chunks(context, forward, {forward.xbc, args.dout, args.dxbc.dst});
  ArenaScope memory(context.scratch());
  const bool idle = context.dry() || forward.xbc.shape[0] == 0;
  SsdWeightParts parts;
  if (by_chunks) {
    const auto scratch = SsdChunkScratch::take(memory, forward, true);
    parts = SsdWeightParts::take(memory, args);
    if (!idle) scan_ssd_chunks_back(stream_of(context), args, parts, scratch);
  } else {
    const auto scratch = SsdGeneralScratch::take(memory, forward, true);
    parts = SsdWeightParts::take(memory, args);
    if (!idle) ssd_scan_general_grad(context, args, parts, scratch);
  }
  if (context.dry()) return;
  const auto sum = [&](const Tensor& partial, const GradDest& weight) {
    if (weight.wanted()) sum_chunks(context, idle ? partial.rows(0, 0) : partial, {weight});
  };
  sum(parts.a_log, args.da_log);
  sum(parts.dt_bias, args.ddt_bias);
  sum(parts.d, args.dd);
}

}  // namespace hone::cuda
