#include "kernels/op_bench.h"
#include "ops/causal_conv/causal_conv.h"
#include "ops/packed_bench.h"

namespace hone {

namespace {

OpCase conv_over_documents(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const int64_t width = sizes.conv.channels;
  const auto x = data.input(width);
  Weight& w = data.weight({width, 1, sizes.conv.taps}, sizes.dtype, true);
  Weight* bias = sizes.conv.bias ? &data.weight({width}, sizes.dtype, true) : nullptr;
  const PackedSequences sequences = packed_documents(data);
  OpCase result;
  result.parts = {{"causal_conv", sizes.shape(width), "causal_conv", "forward", 2 * sizes.bytes(width)},
                  {"causal_conv grad", sizes.shape(width), "causal_conv", "backward", 3 * sizes.bytes(width)}};
  result.record = [=, &w](Tape& tape) { return causal_conv(tape, x(tape), w, bias, sequences); };
  result.gradient = data.activations(width);
  return result;
}

}  // namespace

void causal_conv_cases(OpCases& cases) {
  if (cases.sizes.conv.channels == 0) return;
  cases.add(OpGroup::kMemoryBound, {"causal_conv", "causal_conv grad"}, conv_over_documents);
}

}  // namespace hone
