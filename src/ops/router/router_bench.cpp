#include <fmt/format.h>

#include "kernels/op_bench.h"
#include "ops/router/router.h"

namespace hone {

namespace {

OpCase choose(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const BenchSizes::Experts& experts = sizes.experts;
  const auto x = data.input(sizes.hidden);
  Weight& w = data.weight({experts.count, sizes.hidden}, sizes.dtype, true);
  RouterOptions options;
  options.top_k = experts.chosen;
  options.rule = {.scores = experts.sigmoid ? RouterScores::kSigmoid : RouterScores::kSoftmax,
                  .normalise = experts.normalise,
                  .scale = experts.scale,
                  .groups = experts.groups,
                  .kept_groups = experts.kept_groups,
                  .group_score = experts.groups_by_two ? GroupScore::kTopTwo : GroupScore::kLargest};
  const double bytes = sizes.bytes(sizes.hidden);
  const std::string shape =
      fmt::format("[{}, {}] → {} of {}", sizes.tokens, sizes.hidden, experts.chosen, experts.count);
  OpCase result;
  result.parts = {{"router", shape, "router", "forward", bytes, 1},
                  {"router grad", shape, "router", "backward", 2 * bytes, 3}};
  if (sizes.decode) {  // with few tokens the weight counts, too
    result.parts[0].bytes += sizes.element_bytes() * static_cast<double>(experts.count * sizes.hidden);
  }
  result.record = [=, &w](Tape& tape) { return router(tape, x(tape), {.weight = &w}, options).weights; };
  result.gradient = data.activations(options.top_k);
  return result;
}

}  // namespace

void router_cases(OpCases& cases) {
  if (cases.sizes.experts.count == 0) return;
  cases.add(OpGroup::kExperts, {"router", "router grad"}, choose);
  cases.add_decode(OpGroup::kExperts, "router", choose);
}

}  // namespace hone
