#include "ops/router/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/load_balancing/load_balancing.h"
#include "ops/router/router_testing.h"

namespace hone {
namespace {

using testing::Argument;
using testing::host_values;
using testing::Launcher;
using testing::OpCase;
using testing::random_argument;
using testing::router_distribution;
using testing::router_scores;
using testing::router_weights;
using testing::some_routing;
using testing::TestStruct;
using testing::TestTensor;
using testing::Values;
using testing::zeros;
using Sizes = testing::RouterSizes;

/// The rules of Mixtral, Qwen2-MoE, DeepSeek-V2, DeepSeek-V3, one without renormalisation, and ERNIE's with a least sum
/// that half of the tokens reach. Routing is given here, so groups do not matter (router_choice_test.cpp).
const RouterRule kRules[] = {
    {},
    {.normalise = false},
    {.normalise = false, .scale = 16.0f},
    {.scores = RouterScores::kSigmoid, .scale = 2.5f},
    {.scores = RouterScores::kSigmoid, .normalise = false},
    {.least_sum = 0.5f},
};

struct CaseOptions {
  RouterRule rule = {};
  bool bias = false, frozen = false;
};

OpCase router_case(const Sizes& s, const CaseOptions& options) {
  const std::vector<int32_t> routing = some_routing(s);
  const auto ids = std::make_shared<TestTensor<int32_t>>(routing, Shape{s.tokens, s.k});
  OpCase result{.inputs = {random_argument({s.tokens, s.hidden}, 1)}, .weights = {}, .op = {}, .reference = {}};
  const double scale = 1 / std::sqrt(static_cast<double>(s.hidden));
  result.weights.push_back(random_argument({s.experts, s.hidden}, 2, scale, !options.frozen));
  result.weights.back().takes_narrow_gradient = true;
  if (options.bias) result.weights.push_back(random_argument({s.experts}, 3, 1.0, !options.frozen));
  result.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    const RouterWeights weights{.weight = w[0], .bias = w.size() > 1 ? w[1] : nullptr};
    return std::vector<Var>{
        router(tape, in[0], weights, {.top_k = s.k, .rule = options.rule, .forced_ids = *ids}).weights};
  };
  result.reference = [=](const std::vector<Values>& a) {
    const Values scores = router_scores(a[0], a[1], a.size() > 2 ? a[2] : Values{}, s, options.rule.scores);
    return std::vector<Values>{router_weights(scores, routing, s, options.rule)};
  };
  return result;
}

TEST(Router, MatchesTheReferenceAndItsGradients) {
  const Sizes sizes[] = {{1, 1, 1, 1}, {7, 5, 3, 2}, {13, 17, 12, 12}, {3, 8, 5, 1}, {37, 3, 6, 4}};
  for (const Sizes& s : sizes) {
    for (const RouterRule& rule : kRules) {
      for (const bool bias : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << s.tokens << " x " << s.hidden << ", " << s.experts << " experts, scores "
                     << static_cast<int>(rule.scores) << ", normalise " << rule.normalise << ", scale " << rule.scale
                     << ", least sum " << rule.least_sum << ", bias " << bias);
        const OpCase op_case = router_case(s, {.rule = rule, .bias = bias});
        // Sums of at most 37 products of size 1: 37 · 2^-24, twice for the chain of two products, and the error of exp.
        expect_matches_reference(op_case, DType::kF32, 1e-5);
        // Weights and dx are rounded once from float32 (2^-8). On a GPU the terms of dx and dw also have the 2^-17 of
        // dlogits in two parts, which is small compared to it.
        expect_matches_reference(op_case, DType::kBF16, 0x1p-8 + 1e-5);
      }
    }
  }
}

/// d Σ seed · weights / d (x, w) in float64.
std::pair<Values, Values> gradients_of(const Sizes& s, const Values& x, const Values& w,
                                       const std::vector<int32_t>& ids, const Values& seeds, const RouterRule& rule) {
  const bool softmax = rule.scores == RouterScores::kSoftmax;
  const Values scores = router_scores(x, w, {}, s, rule.scores);
  Values dx(x.size()), dw(w.size());
  for (int64_t n = 0; n < s.tokens; ++n) {
    const double* row = scores.data() + n * s.experts;
    const int32_t* chosen = ids.data() + n * s.k;
    const double* seed = seeds.data() + n * s.k;
    double sum = rule.normalise ? 0 : 1, mean = 0, dot = 0;
    for (int64_t j = 0; rule.normalise && j < s.k; ++j) sum += row[chosen[j]];
    const bool grows = rule.normalise && sum >= static_cast<double>(rule.least_sum);
    for (int64_t j = 0; grows && j < s.k; ++j) mean += seed[j] * row[chosen[j]] / sum;
    if (rule.normalise) sum = std::max(sum, static_cast<double>(rule.least_sum));
    Values ds(static_cast<size_t>(s.experts));
    for (int64_t j = 0; j < s.k; ++j) {
      ds[static_cast<size_t>(chosen[j])] += static_cast<double>(rule.scale) * (seed[j] - mean) / sum;
    }
    for (size_t e = 0; e < ds.size(); ++e) dot += row[e] * ds[e];
    for (size_t e = 0; e < ds.size(); ++e) {
      const double dlogit = row[e] * (softmax ? ds[e] - dot : (1 - row[e]) * ds[e]);
      for (int64_t h = 0; h < s.hidden; ++h) {
        const auto in_x = static_cast<size_t>(n * s.hidden + h),
                   in_w = e * static_cast<size_t>(s.hidden) + static_cast<size_t>(h);
        dx[in_x] += dlogit * w[in_w];
        dw[in_w] += dlogit * x[in_x];
      }
    }
  }
  return {dx, dw};
}

/// Sizes that central differences cannot afford.
TEST(Router, ManyExpertsMatchTheFormulas) {
  const Sizes sizes[] = {{301, 64, 128, 8}, {100, 40, 200, 10}, {70, 32, 60, 4},  {33, 16, 520, 40},
                         {257, 128, 8, 2},  {65, 48, 256, 8},   {50, 24, 384, 8}, {9, 8, 1000, 3}};
  const auto largest = [](const Values& values) {
    double most = 0;
    for (double value : values) most = std::max(most, std::abs(value));
    return most;
  };
  for (const Sizes& s : sizes) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const RouterRule& rule : kRules) {
        SCOPED_TRACE(::testing::Message()
                     << s.experts << " experts " << name_of(dtype) << ", scores " << static_cast<int>(rule.scores)
                     << ", normalise " << rule.normalise << ", least sum " << rule.least_sum);
        const OpCase op_case = router_case(s, {.rule = rule});
        const testing::OpResult got = run_op(op_case, {.dtype = dtype});
        const Values x = testing::rounded(op_case.inputs[0].values, dtype);
        const Values w = testing::rounded(op_case.weights[0].values, dtype);
        const Values want = op_case.reference({x, w})[0];
        const auto [dx, dw] =
            gradients_of(s, x, w, some_routing(s), testing::output_seeds(got.outputs, dtype)[0], rule);
        // As above; sums of up to 301 terms that partly cancel.
        const double unit = dtype == DType::kBF16 ? 0x1p-8 : 0.0;
        const double largest_dx = largest(dx), largest_dw = largest(dw);
        for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.outputs[0][i], want[i], (unit + 1e-5) * want[i]);
        for (size_t i = 0; i < dx.size(); ++i) {
          ASSERT_NEAR(got.gradients[0][i], dx[i], unit * std::abs(dx[i]) + 3e-5 * largest_dx) << i;
        }
        const double parts = dtype == DType::kBF16 ? 0x1p-17 * 20 : 0.0;  // a random walk of up to 301 such errors
        for (size_t i = 0; i < dw.size(); ++i) {
          ASSERT_NEAR(got.gradients[1][i], dw[i], (parts + 3e-5) * largest_dw) << i;
        }
      }
    }
  }
}

TEST(Router, TakesAFloat32WeightBesideBfloat16Activations) {
  const Sizes s{67, 24, 10, 3};
  OpCase op_case = router_case(s, {});
  const auto wide = std::make_shared<testing::TestWeight>(op_case.weights[0], DType::kF32);
  const auto ids = std::make_shared<TestTensor<int32_t>>(some_routing(s), Shape{s.tokens, s.k});
  op_case.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
    return std::vector<Var>{router(tape, in[0], {.weight = wide.get()}, {.top_k = s.k, .forced_ids = *ids}).weights};
  };
  const Argument weight = op_case.weights[0];
  op_case.weights.clear();
  const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
  const Values x = testing::rounded(op_case.inputs[0].values, DType::kBF16);
  const Values w = testing::rounded(weight.values, DType::kF32);
  const Values want = op_case.reference({x, w})[0];
  const Values seeds = testing::output_seeds(got.outputs, DType::kBF16)[0];
  const auto [dx, dw] = gradients_of(s, x, w, some_routing(s), seeds, {});
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.outputs[0][i], want[i], (0x1p-8 + 1e-5) * want[i]);
  for (size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(got.gradients[0][i], dx[i], 0x1p-8 * std::abs(dx[i]) + 1e-4);
}

TEST(Router, FrozenStillPassesTheGradientToItsInput) {
  expect_matches_reference(router_case({7, 5, 3, 2}, {.bias = true, .frozen = true}), DType::kF32, 1e-5);
}

struct Measured {
  TestTensor<float> counts, prob_sum, token_sums;

  Measured(int64_t layers, int64_t experts)
      : counts(zeros<float>({layers, experts})),
        prob_sum(zeros<float>({layers, experts})),
        token_sums(zeros<float>({layers, 2})) {}
  RouterStatistics layer(int64_t l) const {
    const Shape row{counts.tensor().shape[1]};
    return {counts.tensor().rows(l, 1).reshaped(row), prob_sum.tensor().rows(l, 1).reshaped(row),
            token_sums.tensor().rows(l, 1).reshaped({2})};
  }
  RoutingMeasurements all() const { return {counts, prob_sum, token_sums}; }
};

TEST(Router, MeasuresCountsProbabilitiesAndEntropyWhateverTheThreads) {
  const Sizes s{101, 6, 37, 3};
  const Argument x = random_argument({s.tokens, s.hidden}, 1), w = random_argument({s.experts, s.hidden}, 2);
  const TestTensor<float> x_tensor({x.values.begin(), x.values.end()}, x.shape);
  const TestTensor<float> w_tensor({w.values.begin(), w.values.end()}, w.shape);
  for (const RouterRule& rule : kRules) {
    const auto measure = [&](int threads) {
      Launcher on(threads);
      auto measured = std::make_unique<Measured>(1, s.experts);
      const TestTensor<float> weights = zeros<float>({s.tokens, s.k});
      const TestTensor<int32_t> ids = zeros<int32_t>({s.tokens, s.k});
      start_load_balancing(on.context, measured->all());
      router(on.context, {.x = x_tensor,
                          .weight = w_tensor,
                          .ids = ids,
                          .weights = weights,
                          .rule = rule,
                          .statistics = measured->layer(0)});
      on.stream.synchronize();
      std::vector<float> counts(static_cast<size_t>(s.experts));
      for (int32_t id : host_values<int32_t>(ids)) counts[static_cast<size_t>(id)] += 1;
      EXPECT_EQ(host_values<float>(measured->counts), counts);
      return measured;
    };
    const auto measured = measure(2), alone = measure(1);
    EXPECT_EQ(host_values<float>(measured->prob_sum), host_values<float>(alone->prob_sum));
    EXPECT_EQ(host_values<float>(measured->token_sums), host_values<float>(alone->token_sums));

    const Values p = router_distribution(router_scores(testing::rounded(x.values, DType::kF32),
                                                       testing::rounded(w.values, DType::kF32), {}, s, rule.scores),
                                         s);
    double entropy = 0;
    for (double value : p) entropy -= value * std::log(value);
    // Logits of size 10 have an error of some 10 · 2^-23, which is the relative error of p.
    const std::vector<float> sums = host_values<float>(measured->token_sums);
    EXPECT_NEAR(sums[0], entropy, 1e-5 * entropy);
    const Values z =
        testing::router_z(testing::rounded(x.values, DType::kF32), testing::rounded(w.values, DType::kF32), {}, s);
    const double sum_of_z = std::accumulate(z.begin(), z.end(), 0.0);
    EXPECT_NEAR(sums[1], sum_of_z, 1e-5 * sum_of_z);
    for (int64_t e = 0; e < s.experts; ++e) {
      double sum = 0;
      for (int64_t n = 0; n < s.tokens; ++n) sum += p[static_cast<size_t>(n * s.experts + e)];
      EXPECT_NEAR(host_values<float>(measured->prob_sum)[static_cast<size_t>(e)], sum, 1e-5 * sum);
    }
  }
}

/// Two layers that share one auxiliary loss: weights of both are outputs; the third reference output represents
/// aux_scale · aux, which the op adds to the gradients only.
void expect_gradient_of_the_auxiliary_loss(const RouterRule& rule) {
  const Sizes s{11, 4, 5, 2};
  constexpr int64_t kLayers = 2;
  const std::vector<int32_t> routing = some_routing(s);
  const auto ids = std::make_shared<TestTensor<int32_t>>(routing, Shape{s.tokens, s.k});
  const auto measured = std::make_shared<Measured>(kLayers, s.experts);
  const auto fractions = std::make_shared<TestTensor<float>>(zeros<float>({s.experts}));
  const auto totals = std::make_shared<TestStruct<LossTotals>>();
  StepScalars step;
  step.aux_scale = 0.75f;
  step.token_share = 0.5;
  const auto scalars = std::make_shared<TestStruct<StepScalars>>(step);

  OpCase with_aux{.inputs = {random_argument({s.tokens, s.hidden}, 1), random_argument({s.tokens, s.hidden}, 2)},
                  .weights = {random_argument({s.experts, s.hidden}, 3), random_argument({s.experts, s.hidden}, 4)},
                  .op = {},
                  .reference = {}};
  with_aux.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    start_load_balancing(tape.context(), measured->all());
    std::vector<Var> outputs;
    for (int64_t l = 0; l < kLayers; ++l) {
      const auto i = static_cast<size_t>(l);
      outputs.push_back(router(tape, in[i], {.weight = w[i]},
                               {.top_k = s.k,
                                .rule = rule,
                                .statistics = measured->layer(l),
                                .aux = {.fractions = *fractions, .num_layers = kLayers, .scalars = scalars->get()},
                                .forced_ids = *ids})
                            .weights);
    }
    finish_load_balancing(tape.context(), {.counts = measured->counts,
                                           .prob_sum = measured->prob_sum,
                                           .tokens = s.tokens,
                                           .fractions = *fractions,
                                           .totals = totals->get(),
                                           .scalars = scalars->get()});
    return outputs;
  };
  const auto aux_of = [=](const std::vector<Values>& p) {
    Values f(static_cast<size_t>(s.experts)), mean(f.size());
    const double rows = static_cast<double>(kLayers * s.tokens);
    for (int32_t id : routing) f[static_cast<size_t>(id)] += kLayers / rows;
    for (const Values& layer : p) {
      for (size_t i = 0; i < layer.size(); ++i) mean[i % f.size()] += layer[i] / rows;
    }
    return static_cast<double>(s.experts) * std::inner_product(f.begin(), f.end(), mean.begin(), 0.0);
  };
  const double aux_seed = testing::output_seeds({{0}, {0}, {0}}, DType::kF32)[2][0];
  with_aux.reference = [=](const std::vector<Values>& a) {
    const std::vector<Values> scores = {router_scores(a[0], a[2], {}, s, rule.scores),
                                        router_scores(a[1], a[3], {}, s, rule.scores)};
    const double aux = aux_of({router_distribution(scores[0], s), router_distribution(scores[1], s)});
    return std::vector<Values>{router_weights(scores[0], routing, s, rule),
                               router_weights(scores[1], routing, s, rule),
                               {static_cast<double>(step.aux_scale) * aux / aux_seed}};
  };
  const testing::OpResult want = run_reference(with_aux, DType::kF32);
  for (bool recompute : {false, true}) {
    totals->write({});
    const testing::OpResult got = run_op(with_aux, {.dtype = DType::kF32, .recompute = recompute});
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      for (size_t j = 0; j < want.gradients[i].size(); ++j) {
        EXPECT_NEAR(got.gradients[i][j], want.gradients[i][j], 1e-5) << "argument " << i << " element " << j;
      }
    }
    const double aux = want.outputs[2][0] * aux_seed / static_cast<double>(step.aux_scale);
    EXPECT_NEAR(totals->read().aux_loss, 0.5 * aux, 1e-6);
  }
}

TEST(Router, ReceivesTheGradientOfTheAuxiliaryLossOfAllLayersTogether) {
  for (const RouterRule& rule : {kRules[0], kRules[1], kRules[3]}) expect_gradient_of_the_auxiliary_loss(rule);
}

/// Two layers that share one z-loss; the third reference output represents coefficient · token_share · z-loss, which
/// the op adds to the gradients only.
void expect_gradient_of_the_z_loss(const RouterRule& rule, bool bias, const Sizes& s) {
  constexpr int64_t kLayers = 2;
  constexpr double kCoefficient = 0.5, kShare = 0.25;
  const std::vector<int32_t> routing = some_routing(s);
  const auto ids = std::make_shared<TestTensor<int32_t>>(routing, Shape{s.tokens, s.k});
  StepScalars step;
  step.token_share = kShare;
  const auto scalars = std::make_shared<TestStruct<StepScalars>>(step);
  OpCase op_case{.inputs = {random_argument({s.tokens, s.hidden}, 1), random_argument({s.tokens, s.hidden}, 2)},
                 .weights = {random_argument({s.experts, s.hidden}, 3), random_argument({s.experts, s.hidden}, 4)},
                 .op = {},
                 .reference = {}};
  if (bias) {
    for (uint64_t key : {5, 6}) op_case.weights.push_back(random_argument({s.experts}, key));
  }
  op_case.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    std::vector<Var> outputs;
    for (size_t l = 0; l < kLayers; ++l) {
      outputs.push_back(router(tape, in[l], {.weight = w[l], .bias = bias ? w[kLayers + l] : nullptr},
                               {.top_k = s.k,
                                .rule = rule,
                                .z_loss = {.coefficient = static_cast<float>(kCoefficient),
                                           .num_layers = kLayers,
                                           .scalars = scalars->get()},
                                .forced_ids = *ids})
                            .weights);
    }
    return outputs;
  };
  const double seed = testing::output_seeds({{0}, {0}, {0}}, DType::kF32)[2][0];
  op_case.reference = [=](const std::vector<Values>& a) {
    std::vector<Values> outputs;
    double z = 0;
    for (size_t l = 0; l < kLayers; ++l) {
      const Values b = bias ? a[2 * kLayers + l] : Values{};
      outputs.push_back(router_weights(router_scores(a[l], a[kLayers + l], b, s, rule.scores), routing, s, rule));
      const Values of_tokens = testing::router_z(a[l], a[kLayers + l], b, s);
      z += std::accumulate(of_tokens.begin(), of_tokens.end(), 0.0) / static_cast<double>(kLayers * s.tokens);
    }
    outputs.push_back({kCoefficient * kShare * z / seed});
    return outputs;
  };
  const testing::OpResult want = run_reference(op_case, DType::kF32);
  for (bool recompute : {false, true}) {
    const testing::OpResult got = run_op(op_case, {.dtype = DType::kF32, .recompute = recompute});
    for (size_t i = 0; i < want.gradients.size(); ++i) {
      for (size_t j = 0; j < want.gradients[i].size(); ++j) {
        EXPECT_NEAR(got.gradients[i][j], want.gradients[i][j], 1e-5) << "argument " << i << " element " << j;
      }
    }
  }
}

TEST(Router, ReceivesTheGradientOfTheZLoss) {
  for (const RouterRule& rule : {kRules[0], kRules[1], kRules[3]}) {
    for (const bool bias : {false, true}) expect_gradient_of_the_z_loss(rule, bias, {11, 4, 5, 2});
    expect_gradient_of_the_z_loss(rule, false, {1, 1, 1, 1});
    expect_gradient_of_the_z_loss(rule, false, {3, 2, 40, 2});
  }
}

}  // namespace
}  // namespace hone
