#include "ops/router/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/load_balancing/load_balancing.h"
#include "ops/op_harness.h"

namespace hone {
namespace {

using testing::Argument;
using testing::host_values;
using testing::OpCase;
using testing::random_argument;
using testing::test_device;
using testing::TestStream;
using testing::TestStruct;
using testing::TestTensor;
using testing::Values;

/// Runs launchers without a tape.
struct Launcher {
  ThreadPool pool;
  TestStream stream{pool};
  Arena arena{test_device(), "scratch"};
  Context context{stream, arena};

  explicit Launcher(int threads = 2) : pool(threads) { arena.reserve(1 << 20); }
};

template <class T>
TestTensor<T> zeros(Shape shape) {
  return {std::vector<T>(static_cast<size_t>(shape.numel())), shape};
}

struct Sizes {
  int64_t tokens, hidden, experts, k;
};

/// Any k different experts for each token.
std::vector<int32_t> some_routing(const Sizes& s) {
  std::vector<int32_t> ids;
  for (int64_t n = 0; n < s.tokens; ++n) {
    for (int64_t j = 0; j < s.k; ++j) ids.push_back(static_cast<int32_t>((5 * n + 3 + j) % s.experts));
  }
  return ids;
}

/// [T, E] probabilities in float64.
Values probabilities(const Values& x, const Values& w, const Sizes& s) {
  Values p(static_cast<size_t>(s.tokens * s.experts));
  for (int64_t n = 0; n < s.tokens; ++n) {
    double* row = p.data() + n * s.experts;
    for (int64_t e = 0; e < s.experts; ++e) {
      row[e] = 0;
      for (int64_t h = 0; h < s.hidden; ++h) {
        row[e] += x[static_cast<size_t>(n * s.hidden + h)] * w[static_cast<size_t>(e * s.hidden + h)];
      }
    }
    const double largest = *std::max_element(row, row + s.experts);
    double sum = 0;
    for (int64_t e = 0; e < s.experts; ++e) sum += row[e] = std::exp(row[e] - largest);
    for (int64_t e = 0; e < s.experts; ++e) row[e] /= sum;
  }
  return p;
}

Values weights_at(const Values& p, const std::vector<int32_t>& ids, const Sizes& s, bool normalise) {
  Values weights(ids.size());
  for (int64_t n = 0; n < s.tokens; ++n) {
    double sum = 0;
    for (int64_t j = 0; j < s.k; ++j) {
      const auto at = static_cast<size_t>(n * s.k + j);
      sum += weights[at] = p[static_cast<size_t>(n * s.experts + ids[at])];
    }
    for (int64_t j = 0; normalise && j < s.k; ++j) weights[static_cast<size_t>(n * s.k + j)] /= sum;
  }
  return weights;
}

OpCase router_case(const Sizes& s, bool normalise, bool frozen = false) {
  const std::vector<int32_t> routing = some_routing(s);
  const auto ids = std::make_shared<TestTensor<int32_t>>(routing, Shape{s.tokens, s.k});
  return {.inputs = {random_argument({s.tokens, s.hidden}, 1)},
          .weights = {random_argument({s.experts, s.hidden}, 2, 1 / std::sqrt(static_cast<double>(s.hidden)), !frozen)},
          .op =
              [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
                const RouterOptions options{
                    .top_k = s.k, .normalise = normalise, .statistics = {}, .aux = {}, .forced_ids = *ids};
                return std::vector<Var>{router(tape, in[0], *w[0], options).weights};
              },
          .reference =
              [=](const std::vector<Values>& a) {
                return std::vector<Values>{weights_at(probabilities(a[0], a[1], s), routing, s, normalise)};
              }};
}

TEST(Router, MatchesTheReferenceAndItsGradients) {
  const Sizes sizes[] = {{1, 1, 1, 1}, {7, 5, 3, 2}, {13, 17, 12, 12}, {3, 8, 5, 1}, {37, 3, 6, 4}};
  for (const Sizes& s : sizes) {
    for (bool normalise : {true, false}) {
      SCOPED_TRACE(::testing::Message() << s.tokens << " x " << s.hidden << ", " << s.experts << " experts");
      // Sums of at most 37 products of size 1: 37 · 2^-24, twice for the chain of two products, and softmax's own.
      expect_matches_reference(router_case(s, normalise), DType::kF32, 1e-5);
      // Weights and dx are rounded once from float32 (2^-8). On a GPU the terms of dx and dw also carry the 2^-17 of
      // dlogits in two parts, which is little beside it.
      expect_matches_reference(router_case(s, normalise), DType::kBF16, 0x1p-8 + 1e-5);
    }
  }
}

/// d Σ seed · weights / d (x, w) in float64.
std::pair<Values, Values> gradients_of(const Sizes& s, const Values& x, const Values& w,
                                       const std::vector<int32_t>& ids, const Values& seeds, bool normalise) {
  const Values p = probabilities(x, w, s);
  Values dx(x.size()), dw(w.size());
  for (int64_t n = 0; n < s.tokens; ++n) {
    const double* row = p.data() + n * s.experts;
    const int32_t* chosen = ids.data() + n * s.k;
    const double* seed = seeds.data() + n * s.k;
    double sum = normalise ? 0 : 1, mean = 0, dot = 0;
    for (int64_t j = 0; normalise && j < s.k; ++j) sum += row[chosen[j]];
    for (int64_t j = 0; normalise && j < s.k; ++j) mean += seed[j] * row[chosen[j]] / sum;
    Values dp(static_cast<size_t>(s.experts));
    for (int64_t j = 0; j < s.k; ++j) dp[static_cast<size_t>(chosen[j])] += (seed[j] - mean) / sum;
    for (size_t e = 0; e < dp.size(); ++e) dot += row[e] * dp[e];
    for (size_t e = 0; e < dp.size(); ++e) {
      const double dlogit = row[e] * (dp[e] - dot);
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
  const Sizes sizes[] = {{301, 64, 128, 8}, {100, 40, 200, 10}, {70, 32, 60, 4}, {33, 16, 520, 40}, {257, 128, 8, 2}};
  const auto largest = [](const Values& values) {
    double most = 0;
    for (double value : values) most = std::max(most, std::abs(value));
    return most;
  };
  for (const Sizes& s : sizes) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (bool normalise : {true, false}) {
        SCOPED_TRACE(::testing::Message() << s.experts << " experts " << name_of(dtype));
        const OpCase op_case = router_case(s, normalise);
        const testing::OpResult got = run_op(op_case, {.dtype = dtype});
        const Values x = testing::rounded(op_case.inputs[0].values, dtype);
        const Values w = testing::rounded(op_case.weights[0].values, dtype);
        const Values want = op_case.reference({x, w})[0];
        const auto [dx, dw] =
            gradients_of(s, x, w, some_routing(s), testing::output_seeds(got.outputs, dtype)[0], normalise);
        // As above; sums of up to 301 terms that partly cancel.
        const double unit = dtype == DType::kBF16 ? 0x1p-8 : 0.0;
        const double largest_dx = largest(dx), largest_dw = largest(dw);
        for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.outputs[0][i], want[i], (unit + 1e-5) * want[i]);
        for (size_t i = 0; i < dx.size(); ++i) {
          ASSERT_NEAR(got.gradients[0][i], dx[i], unit * std::abs(dx[i]) + 3e-5 * largest_dx) << i;
        }
        const double parts = dtype == DType::kBF16 ? 0x1p-17 * 20 : 0.0;  // a walk of up to 301 such errors
        for (size_t i = 0; i < dw.size(); ++i) {
          ASSERT_NEAR(got.gradients[1][i], dw[i], (parts + 3e-5) * largest_dw) << i;
        }
      }
    }
  }
}

TEST(Router, TakesAFloat32WeightBesideBfloat16Activations) {
  const Sizes s{67, 24, 10, 3};
  OpCase op_case = router_case(s, true);
  const auto wide = std::make_shared<testing::TestWeight>(op_case.weights[0], DType::kF32);
  const auto ids = std::make_shared<TestTensor<int32_t>>(some_routing(s), Shape{s.tokens, s.k});
  op_case.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
    const RouterOptions options{.top_k = s.k, .statistics = {}, .aux = {}, .forced_ids = *ids};
    return std::vector<Var>{router(tape, in[0], *wide, options).weights};
  };
  const Argument weight = op_case.weights[0];
  op_case.weights.clear();
  const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
  const Values x = testing::rounded(op_case.inputs[0].values, DType::kBF16);
  const Values w = testing::rounded(weight.values, DType::kF32);
  const Values want = op_case.reference({x, w})[0];
  const Values seeds = testing::output_seeds(got.outputs, DType::kBF16)[0];
  const auto [dx, dw] = gradients_of(s, x, w, some_routing(s), seeds, true);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.outputs[0][i], want[i], (0x1p-8 + 1e-5) * want[i]);
  for (size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(got.gradients[0][i], dx[i], 0x1p-8 * std::abs(dx[i]) + 1e-4);
}

TEST(Router, ChoosesTheLargestOfManyForEachToken) {
  for (const Sizes& s : {Sizes{203, 96, 128, 8}, Sizes{65, 48, 300, 35}, Sizes{97, 32, 60, 6}}) {
    const Argument x = random_argument({s.tokens, s.hidden}, 5), w = random_argument({s.experts, s.hidden}, 6);
    const TestTensor<float> x_tensor({x.values.begin(), x.values.end()}, x.shape);
    const TestTensor<float> w_tensor({w.values.begin(), w.values.end()}, w.shape);
    const TestTensor<float> weights = zeros<float>({s.tokens, s.k});
    const TestTensor<int32_t> ids = zeros<int32_t>({s.tokens, s.k});
    Launcher on;
    router(on.context, {.x = x_tensor,
                        .weight = w_tensor,
                        .given_ids = {},
                        .ids = ids,
                        .weights = weights,
                        .normalise = true,
                        .statistics = {}});
    on.stream.synchronize();
    const std::vector<int32_t> got = host_values<int32_t>(ids);
    const Values p = probabilities(testing::rounded(x.values, DType::kF32), testing::rounded(w.values, DType::kF32), s);
    for (int64_t n = 0; n < s.tokens; ++n) {
      std::vector<int32_t> order(static_cast<size_t>(s.experts));
      std::iota(order.begin(), order.end(), 0);
      const auto value = [&](int32_t e) { return p[static_cast<size_t>(n * s.experts + e)]; };
      std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
      for (int64_t j = 0; j < s.k; ++j) {
        // Logits of size 10 carry some 2^-19; what is closer may change places.
        const int32_t expert = got[static_cast<size_t>(n * s.k + j)], want = order[static_cast<size_t>(j)];
        ASSERT_NEAR(value(expert) / value(want), 1.0, 1e-5) << n << ", " << j;
      }
    }
  }
}

TEST(Router, FrozenStillPassesTheGradientToItsInput) {
  expect_matches_reference(router_case({7, 5, 3, 2}, true, true), DType::kF32, 1e-5);
}

struct Measured {
  TestTensor<float> counts, prob_sum, entropy;

  Measured(int64_t layers, int64_t experts)
      : counts(zeros<float>({layers, experts})),
        prob_sum(zeros<float>({layers, experts})),
        entropy(zeros<float>({layers})) {}
  RouterStatistics layer(int64_t l) const {
    const Shape row{counts.tensor().shape[1]};
    return {counts.tensor().rows(l, 1).reshaped(row), prob_sum.tensor().rows(l, 1).reshaped(row),
            entropy.tensor().rows(l, 1)};
  }
  RoutingMeasurements all() const { return {counts, prob_sum, entropy}; }
};

std::vector<int32_t> chosen(const std::vector<float>& logits, int64_t experts, int64_t k) {
  // x = 1 and w = logits: one feature, one token.
  const TestTensor<float> x({1.0f}, {1, 1}), w(logits, {experts, 1}), weights = zeros<float>({1, k});
  const TestTensor<int32_t> ids = zeros<int32_t>({1, k});
  Launcher on;
  router(on.context,
         {.x = x, .weight = w, .given_ids = {}, .ids = ids, .weights = weights, .normalise = true, .statistics = {}});
  on.stream.synchronize();
  return host_values<int32_t>(ids);
}

TEST(Router, ChoosesTheLargestAndOfEqualOnesTheLowestExpert) {
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(chosen({0, 0, 0, 0, 0}, 5, 3), (Ids{0, 1, 2}));
  EXPECT_EQ(chosen({1, 3, 2, 3, 3}, 5, 2), (Ids{1, 3}));
  EXPECT_EQ(chosen({2, 1, 2, 3, 1}, 5, 4), (Ids{3, 0, 2, 1}));
  EXPECT_EQ(chosen({-1, 4, 4}, 3, 3), (Ids{1, 2, 0}));
}

TEST(Router, NaNStillChoosesDifferentExperts) {
  const float nan = std::nanf("");
  std::vector<int32_t> ids = chosen({nan, 1, nan, 2}, 4, 3);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
  EXPECT_GE(ids.front(), 0);
  EXPECT_LT(ids.back(), 4);
}

TEST(Router, MeasuresCountsProbabilitiesAndEntropyWhateverTheThreads) {
  const Sizes s{101, 6, 37, 3};
  const Argument x = random_argument({s.tokens, s.hidden}, 1), w = random_argument({s.experts, s.hidden}, 2);
  const TestTensor<float> x_tensor({x.values.begin(), x.values.end()}, x.shape);
  const TestTensor<float> w_tensor({w.values.begin(), w.values.end()}, w.shape);
  const auto measure = [&](int threads) {
    Launcher on(threads);
    auto measured = std::make_unique<Measured>(1, s.experts);
    const TestTensor<float> weights = zeros<float>({s.tokens, s.k});
    const TestTensor<int32_t> ids = zeros<int32_t>({s.tokens, s.k});
    start_load_balancing(on.context, measured->all());
    router(on.context, {.x = x_tensor,
                        .weight = w_tensor,
                        .given_ids = {},
                        .ids = ids,
                        .weights = weights,
                        .normalise = true,
                        .statistics = measured->layer(0)});
    on.stream.synchronize();
    std::vector<float> counts(static_cast<size_t>(s.experts));
    for (int32_t id : host_values<int32_t>(ids)) counts[static_cast<size_t>(id)] += 1;
    EXPECT_EQ(host_values<float>(measured->counts), counts);
    return measured;
  };
  const auto measured = measure(2), alone = measure(1);
  EXPECT_EQ(host_values<float>(measured->prob_sum), host_values<float>(alone->prob_sum));
  EXPECT_EQ(host_values<float>(measured->entropy), host_values<float>(alone->entropy));

  const Values p = probabilities(testing::rounded(x.values, DType::kF32), testing::rounded(w.values, DType::kF32), s);
  double entropy = 0;
  for (double value : p) entropy -= value * std::log(value);
  // Logits of size 10 carry an error of some 10 · 2^-23, which is the relative error of p.
  EXPECT_NEAR(host_values<float>(measured->entropy)[0], entropy, 1e-5 * entropy);
  for (int64_t e = 0; e < s.experts; ++e) {
    double sum = 0;
    for (int64_t n = 0; n < s.tokens; ++n) sum += p[static_cast<size_t>(n * s.experts + e)];
    EXPECT_NEAR(host_values<float>(measured->prob_sum)[static_cast<size_t>(e)], sum, 1e-5 * sum);
  }
}

/// Two layers that share one auxiliary loss: weights of both are outputs; the third reference output stands for
/// aux_scale · aux, which the op adds to the gradients only.
TEST(Router, ReceivesTheGradientOfTheAuxiliaryLossOfAllLayersTogether) {
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
      outputs.push_back(router(tape, in[i], *w[i],
                               {.top_k = s.k,
                                .normalise = true,
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
    const std::vector<Values> p = {probabilities(a[0], a[2], s), probabilities(a[1], a[3], s)};
    return std::vector<Values>{weights_at(p[0], routing, s, true),
                               weights_at(p[1], routing, s, true),
                               {static_cast<double>(step.aux_scale) * aux_of(p) / aux_seed}};
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

}  // namespace
}  // namespace hone
