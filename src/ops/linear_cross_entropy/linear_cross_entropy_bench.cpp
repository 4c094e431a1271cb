#include <fmt/format.h>

#include <numeric>

#include "kernels/op_bench.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace hone {

namespace {

/// The loss of all tokens with its gradients, which forward computes.
OpCase head(BenchData& data, const std::string& name, bool trained) {
  const BenchSizes& sizes = data.sizes;
  const auto x = data.input(sizes.hidden);
  Weight& w = data.weight({sizes.vocab, sizes.hidden}, sizes.dtype, trained);
  std::vector<int32_t> rows(static_cast<size_t>(sizes.tokens));
  std::iota(rows.begin(), rows.end(), 0);
  CrossEntropyLoss loss;
  loss.tokens = {.rows = data.upload({sizes.tokens}, std::move(rows)),
                 .targets = data.random_ids(sizes.vocab),
                 .weights = data.upload({sizes.tokens}, std::vector<float>(static_cast<size_t>(sizes.tokens), 1.0f))};
  loss.scalars = data.place(StepScalars{.inv_loss_weight = 1.0f / static_cast<float>(sizes.tokens)});
  loss.totals = data.place(LossTotals{});
  const auto weights = static_cast<double>(sizes.vocab * sizes.hidden);
  const double bytes = 2 * sizes.bytes(sizes.hidden) + (sizes.element_bytes() + (trained ? 4 : 0)) * weights;
  OpCase result;
  result.parts = {{name, fmt::format("[{}, {}] → {}", sizes.tokens, sizes.hidden, sizes.vocab), "linear_cross_entropy",
                   "forward", bytes, trained ? 3.0 : 2.0}};
  result.record = [=, &w](Tape& tape) {
    linear_cross_entropy(tape, x(tape), w, nullptr, loss);
    return Var{};
  };
  return result;
}

}  // namespace

void linear_cross_entropy_cases(OpCases& cases) {
  for (const bool trained : {true, false}) {
    const std::string name = trained ? "linear_cross_entropy" : "linear_cross_entropy frozen";
    cases.add(OpGroup::kHead, {name}, [=](BenchData& data) { return head(data, name, trained); });
  }
}

}  // namespace hone
