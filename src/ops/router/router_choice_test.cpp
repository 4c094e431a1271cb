// Tests the router's choice of experts: ties, groups, the bias of the selection.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/router/router.h"
#include "ops/router/router_testing.h"

namespace hone {
namespace {

using testing::Argument;
using testing::floats;
using testing::host_values;
using testing::Launcher;
using testing::random_argument;
using testing::router_scores;
using testing::TestTensor;
using testing::Values;
using testing::zeros;
using Ids = std::vector<int32_t>;
using Sizes = testing::RouterSizes;

constexpr RouterRule kSigmoid{.scores = RouterScores::kSigmoid};

struct Choice {
  Ids ids;
  std::vector<float> weights;
};

/// Routes tokens with exactly these logits [T, E]: x is the identity and w their transpose.
Choice route(const std::vector<float>& logits, int64_t tokens, int64_t k, const RouterRule& rule,
             const std::vector<float>& selection_bias = {}) {
  const int64_t experts = static_cast<int64_t>(logits.size()) / tokens;
  std::vector<float> identity(static_cast<size_t>(tokens * tokens)), transposed(logits.size());
  for (int64_t n = 0; n < tokens; ++n) {
    identity[static_cast<size_t>(n * tokens + n)] = 1.0f;
    for (int64_t e = 0; e < experts; ++e) {
      transposed[static_cast<size_t>(e * tokens + n)] = logits[static_cast<size_t>(n * experts + e)];
    }
  }
  const TestTensor<float> x(identity, {tokens, tokens}), w(transposed, {experts, tokens});
  const TestTensor<float> bias(selection_bias, {static_cast<int64_t>(selection_bias.size())});
  const TestTensor<float> weights = zeros<float>({tokens, k});
  const TestTensor<int32_t> ids = zeros<int32_t>({tokens, k});
  Launcher on;
  router(on.context, {.x = x,
                      .weight = w,
                      .selection_bias = selection_bias.empty() ? Tensor{} : bias.tensor(),
                      .ids = ids,
                      .weights = weights,
                      .rule = rule});
  on.stream.synchronize();
  return {host_values<int32_t>(ids), host_values<float>(weights)};
}

Ids chosen(const std::vector<float>& logits, int64_t k, const RouterRule& rule = {},
           const std::vector<float>& selection_bias = {}) {
  return route(logits, 1, k, rule, selection_bias).ids;
}

TEST(RouterChoice, TakesTheLargestOfManyForEachToken) {
  for (const Sizes& s : {Sizes{203, 96, 128, 8}, Sizes{65, 48, 300, 35}, Sizes{97, 32, 60, 6}, Sizes{65, 48, 384, 8}}) {
    const Argument x = random_argument({s.tokens, s.hidden}, 5), w = random_argument({s.experts, s.hidden}, 6);
    const TestTensor<float> x_tensor(floats(x.values), x.shape), w_tensor(floats(w.values), w.shape);
    const TestTensor<float> weights = zeros<float>({s.tokens, s.k});
    const TestTensor<int32_t> ids = zeros<int32_t>({s.tokens, s.k});
    Launcher on;
    router(on.context, {.x = x_tensor, .weight = w_tensor, .ids = ids, .weights = weights});
    on.stream.synchronize();
    const Ids got = host_values<int32_t>(ids);
    const Values p = router_scores(testing::rounded(x.values, DType::kF32), testing::rounded(w.values, DType::kF32), {},
                                   s, RouterScores::kSoftmax);
    for (int64_t n = 0; n < s.tokens; ++n) {
      Ids order(static_cast<size_t>(s.experts));
      std::iota(order.begin(), order.end(), 0);
      const auto value = [&](int32_t e) { return p[static_cast<size_t>(n * s.experts + e)]; };
      std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
      for (int64_t j = 0; j < s.k; ++j) {
        // Logits of size 10 have an error of some 2^-19; closer ones may be swapped.
        const int32_t expert = got[static_cast<size_t>(n * s.k + j)], want = order[static_cast<size_t>(j)];
        ASSERT_NEAR(value(expert) / value(want), 1.0, 1e-5) << n << ", " << j;
      }
    }
  }
}

TEST(RouterChoice, TakesOfEqualOnesTheLowestExpert) {
  for (const RouterRule& rule : {RouterRule{}, kSigmoid}) {
    EXPECT_EQ(chosen({0, 0, 0, 0, 0}, 3, rule), (Ids{0, 1, 2}));
    EXPECT_EQ(chosen({1, 3, 2, 3, 3}, 2, rule), (Ids{1, 3}));
    EXPECT_EQ(chosen({2, 1, 2, 3, 1}, 4, rule), (Ids{3, 0, 2, 1}));
    EXPECT_EQ(chosen({-1, 4, 4}, 3, rule), (Ids{1, 2, 0}));
  }
}

TEST(RouterChoice, NaNStillChoosesDifferentExperts) {
  const float nan = std::nanf("");
  const RouterRule grouped{.groups = 2, .kept_groups = 2};
  for (const RouterRule& rule : {RouterRule{}, kSigmoid, grouped}) {
    Ids ids = chosen({nan, 1, nan, 2}, 3, rule);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
    EXPECT_GE(ids.front(), 0);
    EXPECT_LT(ids.back(), 4);
  }
}

TEST(RouterChoice, KeepsTheGroupsOfTheLargestExperts) {
  const RouterRule rule{.groups = 3, .kept_groups = 2, .group_score = GroupScore::kLargest};
  // Groups {9, 0}, {8, 8}, {1, 10}: the second has the smallest maximum.
  EXPECT_EQ(chosen({9, 0, 8, 8, 1, 10}, 3, rule), (Ids{5, 0, 4}));
  // The lowest of equal groups is chosen.
  EXPECT_EQ(chosen({1, 5, 5, 0, 5, 4}, 3, rule), (Ids{1, 2, 0}));
}

TEST(RouterChoice, KeepsTheGroupsWhoseTwoBestAddUpToMost) {
  const RouterRule rule{
      .scores = RouterScores::kSigmoid, .groups = 3, .kept_groups = 2, .group_score = GroupScore::kTopTwo};
  // Sigmoids .5 + .73 of the first group are less than .62 + .65 of the second.
  EXPECT_EQ(chosen({0, 1, 0.5f, 0.6f, 2, 2}, 3, rule), (Ids{4, 5, 3}));
  const RouterRule softmax{.groups = 3, .kept_groups = 1, .group_score = GroupScore::kTopTwo};
  // Logits -5 + 2 of the first group are less than -1 + -1 of the second, but not their exponentials.
  EXPECT_EQ(chosen({-5, 2, -1, -1, -9, -9}, 2, softmax), (Ids{1, 0}));
}

TEST(RouterChoice, TheSelectionBiasChoosesButDoesNotWeigh) {
  const std::vector<float> logits = {2, 0, 1, -1}, bias = {-1.0f, 0.5f, 0.0f, 0.75f};
  const Choice choice = route(logits, 1, 2, {.scores = RouterScores::kSigmoid, .normalise = false}, bias);
  EXPECT_EQ(choice.ids, (Ids{3, 1}));  // .27 + .75, .5 + .5; not .73, nor .88 - 1
  EXPECT_NEAR(choice.weights[0], 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(choice.weights[1], 0.5, 1e-6);
}

/// The bias is added to the distribution, not to the logits.
TEST(RouterChoice, TheSelectionBiasOfASoftmaxIsAddedToItsScores) {
  const std::vector<float> logits = {2, 0, 1, -1}, bias = {-0.5f, 0.25f, 0.0f, 0.125f};
  const Choice choice = route(logits, 1, 2, {.normalise = false}, bias);
  EXPECT_EQ(choice.ids, (Ids{1, 2}));  // .09 + .25, .24; not .64 - .5, nor .03 + .125
  const double sum = std::exp(2.0) + 1 + std::exp(1.0) + std::exp(-1.0);
  EXPECT_NEAR(choice.weights[0], 1 / sum, 1e-6);
  EXPECT_NEAR(choice.weights[1], std::exp(1.0) / sum, 1e-6);
}

TEST(RouterChoice, TheSumOfTheChosenScoresIsAtLeastTheRules) {
  const std::vector<float> logits = {2, 0, 1, -1}, bias = {-9.0f, 0.0f, -9.0f, 0.0f};
  const double sum = std::exp(2.0) + 1 + std::exp(1.0) + std::exp(-1.0);
  const Choice divided = route(logits, 1, 2, {.least_sum = 0.25f}, bias);
  EXPECT_EQ(divided.ids, (Ids{1, 3}));
  EXPECT_NEAR(divided.weights[0], 1 / sum / 0.25, 1e-6);  // their sum is .12
  EXPECT_NEAR(divided.weights[1], std::exp(-1.0) / sum / 0.25, 1e-6);
  EXPECT_NEAR(route(logits, 1, 2, {.least_sum = 0.0625f}, bias).weights[0], 1 / (1 + std::exp(-1.0)), 1e-6);
}

/// As in the DeepSeek-V3 and GLM of transformers from 5.17 on. Older versions counted them as 0.
TEST(RouterChoice, AnExpertOfADroppedGroupIsNotChosenHoweverLowTheOthersAre) {
  const RouterRule rule{
      .scores = RouterScores::kSigmoid, .groups = 2, .kept_groups = 1, .group_score = GroupScore::kTopTwo};
  EXPECT_EQ(chosen({0, 0, 0, 0}, 2, rule, {0.0f, -0.75f, -3.0f, -3.0f}), (Ids{0, 1}));
}

/// Ids by definition, in float64. `gap` receives the least distance of values that decide a choice.
Ids reference_choice(const Values& scores, const std::vector<float>& bias, const RouterRule& rule, int64_t k,
                     double& gap) {
  Values c = scores;
  for (size_t e = 0; e < bias.size(); ++e) c[e] += static_cast<double>(bias[e]);
  const auto best = [&](const Values& values, int64_t count, int64_t first_decision) {
    Ids order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
    });
    for (auto i = static_cast<size_t>(first_decision); i < order.size() && i <= static_cast<size_t>(count); ++i) {
      const double distance = values[static_cast<size_t>(order[i - 1])] - values[static_cast<size_t>(order[i])];
      if (distance > 0) gap = std::min(gap, distance);
    }
    order.resize(static_cast<size_t>(count));
    return order;
  };
  if (rule.groups > 1) {
    const size_t size = c.size() / static_cast<size_t>(rule.groups);
    Values group_scores;
    for (size_t begin = 0; begin < c.size(); begin += size) {
      Values group(c.begin() + static_cast<std::ptrdiff_t>(begin),
                   c.begin() + static_cast<std::ptrdiff_t>(begin + size));
      std::sort(group.begin(), group.end(), std::greater<>());
      group_scores.push_back(rule.group_score == GroupScore::kLargest ? group[0] : group[0] + group[1]);
    }
    const Ids kept = best(group_scores, rule.kept_groups, rule.kept_groups);  // in any order
    for (size_t e = 0; e < c.size(); ++e) {
      if (std::find(kept.begin(), kept.end(), static_cast<int32_t>(e / size)) == kept.end()) c[e] = -1e9;
    }
  }
  return best(c, k, 1);
}

TEST(RouterChoice, AgreesWithTheDefinitionForEachRuleAndManyExperts) {
  struct Case {
    int64_t experts, k;
    RouterRule rule;
    bool biased;
  };
  constexpr auto kSoftmaxScores = RouterScores::kSoftmax, kSigmoidScores = RouterScores::kSigmoid;
  const Case cases[] = {
      {160, 6, {.scores = kSoftmaxScores, .groups = 8, .kept_groups = 3}, false},  // DeepSeek-V2
      {256, 8, {.scores = kSigmoidScores, .groups = 8, .kept_groups = 4, .group_score = GroupScore::kTopTwo}, true},
      {384, 8, {.scores = kSigmoidScores}, true},                    // Kimi-K2
      {64, 6, {.scores = kSoftmaxScores, .least_sum = 0.3f}, true},  // ERNIE 4.5
      {128, 4, {.scores = kSoftmaxScores, .groups = 4, .kept_groups = 2, .group_score = GroupScore::kTopTwo}, false},
      {128, 8, {.scores = kSigmoidScores, .normalise = false}, false},
      {64, 64, {.scores = kSigmoidScores, .groups = 32, .kept_groups = 32, .group_score = GroupScore::kTopTwo}, true},
      {12, 3, {.scores = kSigmoidScores, .groups = 6, .kept_groups = 2, .group_score = GroupScore::kTopTwo}, true},
      {7, 2, {.scores = kSoftmaxScores, .groups = 7, .kept_groups = 3}, false},
      {1000, 40, {.scores = kSoftmaxScores, .groups = 20, .kept_groups = 2}, false},
  };
  constexpr int64_t kTokens = 37;
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.experts << " experts in " << c.rule.groups << " groups");
    PhiloxSequence random(7);
    std::vector<float> logits, bias;
    // A grid with many ties, off the symmetry sigmoid(-x) = 1 - sigmoid(x), which would cause near ties of sums.
    for (int64_t i = 0; i < kTokens * c.experts; ++i) logits.push_back(static_cast<float>(random.below(25)) / 4 - 2.9f);
    for (int64_t e = 0; c.biased && e < c.experts; ++e)
      bias.push_back(static_cast<float>(random.below(3)) * 0.23f - 0.4f);
    const Choice got = route(logits, kTokens, c.k, c.rule, bias);
    const Values exact(logits.begin(), logits.end());
    const Sizes one{1, 1, c.experts, c.k};
    double gap = 1.0;
    for (int64_t n = 0; n < kTokens; ++n) {
      const auto row = exact.begin() + n * c.experts;
      const Values scores = router_scores({1.0}, {row, row + c.experts}, {}, one, c.rule.scores);
      const Ids want = reference_choice(scores, bias, c.rule, c.k, gap);
      const auto ids = got.ids.begin() + n * c.k;
      ASSERT_EQ(Ids(ids, ids + c.k), want) << "token " << n;
      const Values weights = testing::router_weights(scores, want, one, c.rule);
      for (int64_t j = 0; j < c.k; ++j) {
        const auto i = static_cast<size_t>(j);
        ASSERT_NEAR(got.weights[static_cast<size_t>(n * c.k + j)], weights[i], 1e-5 * weights[i]);
      }
    }
    EXPECT_GT(gap, 1e-6) << "the definition must decide, not rounding";
  }
}

}  // namespace
}  // namespace hone
