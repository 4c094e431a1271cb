#include "ops/load_balancing/load_balancing.h"

#include <gtest/gtest.h>

#include "core/buffer.h"
#include "ops/op_harness.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

struct LoadBalancing : ::testing::Test {
  ThreadPool pool{2};
  TestStream stream{pool};
  Arena arena{test_device(), "scratch"};
  Context context{stream, arena};
  Buffer memory{test_device(), 4096};
  LossTotals totals;
  size_t used = 0;

  LoadBalancing() { arena.reserve(1); }

  Tensor tensor(Shape shape, const std::vector<float>& values = {}) {
    const Tensor t = memory.tensor(shape, DType::kF32, used);
    used += t.bytes();
    std::copy(values.begin(), values.end(), t.as<float>());
    return t;
  }
  double aux(Tensor counts, Tensor prob_sum, int64_t tokens, Tensor fractions, double share = 1.0) {
    totals = {};
    finish_load_balancing(context, {.counts = counts,
                                    .prob_sum = prob_sum,
                                    .tokens = tokens,
                                    .fractions = fractions,
                                    .totals = &totals,
                                    .share = share});
    stream.synchronize();
    return totals.aux_loss;
  }
};

TEST_F(LoadBalancing, IsTopKUnderPerfectBalance) {
  // 6 tokens, 3 experts, k = 2: 4 choices and a probability mass of 2 for each expert.
  EXPECT_NEAR(aux(tensor({1, 3}, {4, 4, 4}), tensor({1, 3}, {2, 2, 2}), 6, tensor({3})), 2.0, 1e-12);
}

TEST_F(LoadBalancing, TakesMeansOverAllLayersTogether) {
  // Two layers of 4 tokens, k = 1, each collapsed onto another expert: f = P = (1/2, 1/2), so aux = 1; the average of
  // per-layer losses would be 2.
  const Tensor counts = tensor({2, 2}, {4, 0, 0, 4}), prob_sum = tensor({2, 2}, {4, 0, 0, 4});
  const Tensor fractions = tensor({2});
  EXPECT_NEAR(aux(counts, prob_sum, 4, fractions), 1.0, 1e-12);
  EXPECT_EQ(fractions.as<float>()[0], 0.5f);
  EXPECT_EQ(fractions.as<float>()[1], 0.5f);
}

TEST_F(LoadBalancing, FollowsTheFormulaAndTheShareOfTheStep) {
  const Tensor counts = tensor({2, 3}, {5, 1, 2, 0, 3, 5}), prob_sum = tensor({2, 3}, {2, 1, 1, 0.5, 1.5, 2});
  // f = (5, 4, 7) / 8, P = (2.5, 2.5, 3) / 8, aux = 3 · (12.5 + 10 + 21) / 64.
  EXPECT_NEAR(aux(counts, prob_sum, 4, tensor({3}), 0.25), 0.25 * 3 * 43.5 / 64, 1e-12);
}

TEST_F(LoadBalancing, StartsFromZero) {
  const Tensor counts = tensor({1, 2}, {1, 2}), prob_sum = tensor({1, 2}, {3, 4}), entropy = tensor({1}, {5});
  start_load_balancing(context, {counts, prob_sum, entropy});
  stream.synchronize();
  for (const Tensor& t : {counts, prob_sum, entropy}) {
    for (int64_t i = 0; i < t.numel(); ++i) EXPECT_EQ(t.as<float>()[i], 0.0f);
  }
}

}  // namespace
}  // namespace hone
