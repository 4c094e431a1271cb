#include <fmt/format.h>

#include "kernels/op_bench.h"
#include "ops/embedding/embedding.h"

namespace hone {

namespace {

OpCase look_up(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const Tensor ids = data.random_ids(sizes.vocab);
  Weight& w = data.weight({sizes.vocab, sizes.hidden}, sizes.dtype, true);
  const std::string shape = fmt::format("{} of [{}, {}]", sizes.tokens, sizes.vocab, sizes.hidden);
  const double rows = sizes.bytes(sizes.hidden), gradients = 4 * static_cast<double>(sizes.vocab * sizes.hidden);
  OpCase result;
  result.parts = {{"embedding", shape, "embedding", "forward", 2 * rows},
                  {"embedding grad", shape, "embedding", "backward", rows + gradients}};
  result.record = [=, &w, dtype = sizes.dtype](Tape& tape) { return embedding(tape, ids, w, dtype); };
  result.gradient = data.activations(sizes.hidden);
  return result;
}

}  // namespace

void embedding_cases(OpCases& cases) { cases.add(OpGroup::kMemoryBound, {"embedding", "embedding grad"}, look_up); }

}  // namespace hone
