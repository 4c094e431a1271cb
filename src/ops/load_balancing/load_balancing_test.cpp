#include "ops/load_balancing/load_balancing.h"

#include <gtest/gtest.h>

#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::host_values;
using testing::test_device;
using testing::TestStream;
using testing::TestStruct;
using testing::TestTensor;

struct LoadBalancing : ::testing::Test {
  ThreadPool pool{2};
  TestStream stream{pool};
  Arena arena{test_device(), "scratch"};
  Context context{stream, arena};
  TestStruct<LossTotals> totals;
  TestStruct<StepScalars> scalars;

  LoadBalancing() { arena.reserve(1); }

  double aux(const Tensor& counts, const Tensor& prob_sum, int64_t tokens, const Tensor& fractions,
             double token_share = 1.0) {
    StepScalars step;
    step.token_share = token_share;
    scalars.write(step);
    LossTotals before;
    before.aux_loss = 10;
    totals.write(before);
    finish_load_balancing(context, {.counts = counts,
                                    .prob_sum = prob_sum,
                                    .tokens = tokens,
                                    .fractions = fractions,
                                    .totals = totals.get(),
                                    .scalars = scalars.get()});
    stream.synchronize();
    return totals.read().aux_loss - 10;
  }
};

TestTensor<float> fractions_of(int64_t experts) {
  return {std::vector<float>(static_cast<size_t>(experts), -1.0f), {experts}};
}

TEST_F(LoadBalancing, IsTopKUnderPerfectBalance) {
  // 6 tokens, 3 experts, k = 2: 4 choices and a probability mass of 2 for each expert.
  const TestTensor<float> counts({4, 4, 4}, {1, 3}), prob_sum({2, 2, 2}, {1, 3}), fractions = fractions_of(3);
  EXPECT_NEAR(aux(counts, prob_sum, 6, fractions), 2.0, 1e-12);
}

TEST_F(LoadBalancing, TakesMeansOverAllLayersTogether) {
  // Two layers of 4 tokens, k = 1, each collapsed onto a different expert: f = P = (1/2, 1/2), so aux = 1; the average
  // of per-layer losses would be 2.
  const TestTensor<float> counts({4, 0, 0, 4}, {2, 2}), prob_sum({4, 0, 0, 4}, {2, 2}), fractions = fractions_of(2);
  EXPECT_NEAR(aux(counts, prob_sum, 4, fractions), 1.0, 1e-12);
  EXPECT_EQ(host_values<float>(fractions), (std::vector<float>{0.5f, 0.5f}));
}

TEST_F(LoadBalancing, FollowsTheFormulaAndTheShareOfTheStep) {
  const TestTensor<float> counts({5, 1, 2, 0, 3, 5}, {2, 3}), prob_sum({2, 1, 1, 0.5, 1.5, 2}, {2, 3});
  // f = (5, 4, 7) / 8, P = (2.5, 2.5, 3) / 8, aux = 3 · (12.5 + 10 + 21) / 64.
  EXPECT_NEAR(aux(counts, prob_sum, 4, fractions_of(3), 0.25), 0.25 * 3 * 43.5 / 64, 1e-12);
}

TEST_F(LoadBalancing, HandlesMoreExpertsThanABlockHasThreads) {
  constexpr int64_t kLayers = 3, kExperts = 1500, kTokens = 500;
  std::vector<float> counts, prob_sum;
  double aux_sum = 0;
  for (int64_t i = 0; i < kLayers * kExperts; ++i) {
    counts.push_back(static_cast<float>(i % 7));
    prob_sum.push_back(static_cast<float>(i % 5) / 4);
  }
  std::vector<float> f;
  for (size_t e = 0; e < kExperts; ++e) {
    double count = 0, prob = 0;
    for (size_t i = e; i < counts.size(); i += kExperts) {
      count += static_cast<double>(counts[i]) / (kLayers * kTokens);
      prob += static_cast<double>(prob_sum[i]) / (kLayers * kTokens);
    }
    f.push_back(static_cast<float>(count));
    aux_sum += kExperts * count * prob;
  }
  const TestTensor<float> counts_tensor(counts, {kLayers, kExperts}), prob_tensor(prob_sum, {kLayers, kExperts});
  const TestTensor<float> fractions = fractions_of(kExperts);
  EXPECT_NEAR(aux(counts_tensor, prob_tensor, kTokens, fractions), aux_sum, 1e-12 * aux_sum + 1e-12);
  const std::vector<float> got = host_values<float>(fractions);
  for (size_t e = 0; e < f.size(); ++e) EXPECT_FLOAT_EQ(got[e], f[e]);
}

TEST_F(LoadBalancing, StartsFromZero) {
  const TestTensor<float> counts({1, 2}, {1, 2}), prob_sum({3, 4}, {1, 2}), token_sums({5, 6}, {1, 2});
  start_load_balancing(context, {counts, prob_sum, token_sums});
  stream.synchronize();
  for (const auto* tensor : {&counts, &prob_sum, &token_sums}) {
    for (float value : host_values<float>(*tensor)) EXPECT_EQ(value, 0.0f);
  }
}

}  // namespace
}  // namespace hone
