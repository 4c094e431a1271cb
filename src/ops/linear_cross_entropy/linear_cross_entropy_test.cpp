#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/embedding/embedding.h"
#include "ops/op_harness.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

using testing::Argument;
using testing::OpCase;
using testing::OpResult;
using testing::Values;

struct Sizes {
  int64_t tokens, hidden, vocab, supervised, rank = 0;
};

constexpr float kScaling = 0.5f;
constexpr float kInvLossWeight = 0.125f;

/// A head with its loss in host memory, which is the CPU's device memory.
struct HeadCase {
  Sizes sizes;
  std::vector<int32_t> rows, targets;
  std::vector<float> weights, token_loss;
  Buffer memory;
  CrossEntropyLoss loss;
  StepScalars scalars;
  LossTotals totals;
  OpCase op_case;

  explicit HeadCase(Sizes s) : sizes(s), memory(test_device(), static_cast<size_t>(s.supervised) * 16 + 4096) {
    PhiloxSequence random(3);
    for (int64_t t = 0; t < s.tokens; ++t) rows.push_back(static_cast<int32_t>(t));
    for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random.below(i)]);
    rows.resize(static_cast<size_t>(s.supervised));
    for (int64_t i = 0; i < s.supervised; ++i) {
      targets.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(s.vocab))));
      weights.push_back(i % 3 == 2 ? 0.0f : 0.5f + random.uniform());
    }
    scalars.inv_loss_weight = kInvLossWeight;
    if (s.supervised > 0) {
      loss.tokens = {.rows = upload(rows, DType::kI32, 0),
                     .targets = upload(targets, DType::kI32, 1),
                     .weights = upload(weights, DType::kF32, 2)};
      loss.token_loss = upload(weights, DType::kF32, 3);
    }
    loss.scalars = &scalars;
    loss.totals = &totals;
    op_case.inputs = {testing::random_argument({s.tokens, s.hidden}, 1)};
    op_case.weights = {testing::random_argument({s.vocab, s.hidden}, 2)};
    if (s.rank > 0) {
      op_case.weights.push_back(testing::random_argument({s.rank, s.hidden}, 3));
      op_case.weights.push_back(testing::random_argument({s.vocab, s.rank}, 4));
    }
    op_case.op = [this](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
      totals = {};
      const Adapter adapter = s_rank() ? Adapter{.lora_a = w[1], .lora_b = w[2], .scaling = kScaling} : Adapter{};
      linear_cross_entropy(tape, in[0], *w[0], s_rank() ? &adapter : nullptr, loss);
      return std::vector<Var>{};
    };
  }

  bool s_rank() const { return sizes.rank > 0; }

  template <class T>
  Tensor upload(const std::vector<T>& values, DType dtype, size_t slot) {
    const size_t offset = slot * (values.size() * sizeof(T));
    const Tensor tensor = memory.tensor({static_cast<int64_t>(values.size())}, dtype, offset);
    std::copy(values.begin(), values.end(), tensor.template as<T>());
    return tensor;
  }

  float loss_of_token(size_t i) const { return loss.token_loss.as<float>()[i]; }
};

struct Reference {
  std::vector<Values> gradients;  // of x, w and, with an adapter, A and B
  Values losses;
  LossTotals totals;
};

double dot(const double* a, const double* b, int64_t n, int64_t b_stride = 1) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i * b_stride];
  return sum;
}

/// The formulas of the header in float64, one token after the other.
Reference reference_of(const HeadCase& c, DType dtype) {
  const auto [tokens, hidden, vocab, supervised, rank] = c.sizes;
  const Values x = testing::rounded(c.op_case.inputs[0].values, dtype);
  std::vector<Values> w;
  Reference result;
  result.gradients.emplace_back(x.size(), 0.0);
  for (const Argument& weight : c.op_case.weights) {
    w.push_back(testing::rounded(weight.values, dtype));
    result.gradients.emplace_back(weight.values.size(), 0.0);
  }
  for (size_t s = 0; s < c.rows.size(); ++s) {
    const double* row = x.data() + c.rows[s] * hidden;
    Values xa(static_cast<size_t>(rank)), logits(static_cast<size_t>(vocab)), dxa(xa.size(), 0.0);
    for (int64_t r = 0; r < rank; ++r) xa[static_cast<size_t>(r)] = dot(row, w[1].data() + r * hidden, hidden);
    for (int64_t v = 0; v < vocab; ++v) {
      double& logit = logits[static_cast<size_t>(v)];
      logit = dot(row, w[0].data() + v * hidden, hidden);
      if (rank > 0) logit += kScaling * dot(xa.data(), w[2].data() + v * rank, rank);
    }
    const auto largest = std::max_element(logits.begin(), logits.end());
    double sum = 0, entropy = 0;
    for (double logit : logits) sum += std::exp(logit - *largest);
    const double log_sum = *largest + std::log(sum);
    for (double logit : logits) entropy -= std::exp(logit - log_sum) * (logit - log_sum);
    const auto target = static_cast<size_t>(c.targets[s]);
    const double weight = c.weights[s];
    result.losses.push_back(log_sum - logits[target]);
    result.totals.weighted_loss += weight * result.losses.back();
    result.totals.weight += weight;
    result.totals.entropy += entropy;
    result.totals.hits += largest - logits.begin() == c.targets[s] ? 1 : 0;
    result.totals.tokens += 1;
    for (int64_t v = 0; v < vocab; ++v) {
      const auto i = static_cast<size_t>(v);
      const double d = weight * kInvLossWeight * (std::exp(logits[i] - log_sum) - (i == target ? 1 : 0));
      for (int64_t h = 0; h < hidden; ++h) {
        result.gradients[0][static_cast<size_t>(c.rows[s] * hidden + h)] +=
            d * w[0][static_cast<size_t>(v * hidden + h)];
        result.gradients[1][static_cast<size_t>(v * hidden + h)] += d * row[h];
      }
      for (int64_t r = 0; r < rank; ++r) {
        dxa[static_cast<size_t>(r)] += kScaling * d * w[2][static_cast<size_t>(v * rank + r)];
        result.gradients[3][static_cast<size_t>(v * rank + r)] += kScaling * d * xa[static_cast<size_t>(r)];
      }
    }
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t h = 0; h < hidden; ++h) {
        const double d = dxa[static_cast<size_t>(r)];
        result.gradients[0][static_cast<size_t>(c.rows[s] * hidden + h)] +=
            d * w[1][static_cast<size_t>(r * hidden + h)];
        result.gradients[2][static_cast<size_t>(r * hidden + h)] += d * row[h];
      }
    }
  }
  return result;
}

void expect_close(const Values& got, const Values& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double scale = 1e-3;
  for (double value : want) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance * scale) << what << " element " << i;
}

/// float32: logits of |x||w| up to some 30 carry an error of 2^-20 each, which the softmax passes on. bfloat16: dX is
/// rounded once (2^-8), or twice with an adapter, whose part is added to it.
void expect_right(HeadCase& c, DType dtype) {
  const Reference want = reference_of(c, dtype);
  const OpResult got = run_op(c.op_case, {.dtype = dtype});
  const double rounding = dtype == DType::kF32 ? 0.0 : c.sizes.rank > 0 ? 0x1p-7 : 0x1p-8;
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    expect_close(got.gradients[i], want.gradients[i], 1e-5 + (i == 0 ? rounding : 0.0),
                 "gradient " + std::to_string(i));
  }
  for (size_t s = 0; s < want.losses.size(); ++s) ASSERT_NEAR(c.loss_of_token(s), want.losses[s], 1e-5 * 30) << s;
  const double count = want.totals.tokens;
  EXPECT_NEAR(c.totals.weighted_loss, want.totals.weighted_loss, 1e-5 * 30 * count);
  EXPECT_NEAR(c.totals.weight, want.totals.weight, 1e-9);
  EXPECT_NEAR(c.totals.entropy, want.totals.entropy, 1e-5 * 30 * count);
  EXPECT_EQ(c.totals.hits, want.totals.hits);
  EXPECT_EQ(c.totals.tokens, want.totals.tokens);
  const LossTotals totals = c.totals;
  for (const testing::RunOptions& options :
       {testing::RunOptions{.dtype = dtype, .recompute = true}, testing::RunOptions{.dtype = dtype, .threads = 1}}) {
    EXPECT_EQ(run_op(c.op_case, options).gradients, got.gradients);
    EXPECT_EQ(c.totals.weighted_loss, totals.weighted_loss);
  }
}

const Sizes kSizes[] = {{1, 1, 1, 1},      {1, 5, 3, 0},      {7, 13, 31, 3},
                        {19, 3, 1031, 19}, {64, 33, 127, 31}, {300, 17, 67, 300}};

TEST(LinearCrossEntropy, MatchesTheReferenceAndItsGradients) {
  for (const Sizes& sizes : kSizes) {
    SCOPED_TRACE(::testing::Message() << "T " << sizes.tokens << " V " << sizes.vocab << " S " << sizes.supervised);
    HeadCase c(sizes);
    expect_right(c, DType::kF32);
    expect_right(c, DType::kBF16);
  }
}

TEST(LinearCrossEntropy, MatchesTheReferenceWithAnAdapter) {
  for (Sizes sizes : {Sizes{1, 1, 1, 1, 1}, {7, 13, 31, 3, 2}, {23, 6, 101, 11, 5}}) {
    HeadCase c(sizes);
    expect_right(c, DType::kF32);
    expect_right(c, DType::kBF16);
  }
}

TEST(LinearCrossEntropy, ChunksOfAnySizeGiveTheSame) {
  HeadCase c({40, 11, 53, 37, 3});
  const OpResult whole = run_op(c.op_case, {});
  const LossTotals totals = c.totals;
  for (int64_t rows : {1, 2, 5, 36}) {
    c.loss.max_logits_bytes = rows * 53 * 4;
    expect_right(c, DType::kF32);
    const OpResult chunked = run_op(c.op_case, {});
    EXPECT_EQ(chunked.gradients[0], whole.gradients[0]) << "dX, bit for bit";
    EXPECT_EQ(c.totals.weighted_loss, totals.weighted_loss);
    EXPECT_EQ(c.totals.entropy, totals.entropy);
  }
}

TEST(LinearCrossEntropy, NoSupervisedTokenGivesZeroGradients) {
  HeadCase c({5, 7, 11, 0, 2});
  const OpResult got = run_op(c.op_case, {});
  for (const Values& gradient : got.gradients) EXPECT_EQ(gradient, Values(gradient.size(), 0.0));
  EXPECT_EQ(c.totals.tokens, 0);
}

TEST(LinearCrossEntropy, FrozenWeightsStillPassTheGradientOn) {
  HeadCase c({7, 13, 31, 3});
  const OpResult all = run_op(c.op_case, {});
  c.op_case.weights[0].differentiable = false;
  EXPECT_EQ(run_op(c.op_case, {}).gradients[0], all.gradients[0]);
}

TEST(LinearCrossEntropy, ATrainedHeadOverAFrozenBodyGetsItsGradient) {
  HeadCase c({7, 13, 31, 3});
  const OpResult all = run_op(c.op_case, {});
  c.op_case.inputs[0].differentiable = false;
  EXPECT_EQ(run_op(c.op_case, {}).gradients[1], all.gradients[1]);
}

/// A tied weight: the head writes its gradient in forward, the embedding adds to it at the end of backward.
TEST(LinearCrossEntropy, SharesItsWeightWithTheEmbedding) {
  HeadCase c({6, 5, 17, 4});
  const std::vector<int32_t> ids = {3, 16, 3, 0, 3, 7};
  Buffer memory(test_device(), ids.size() * sizeof(int32_t));
  const Tensor tokens = memory.tensor({6}, DType::kI32);
  std::copy(ids.begin(), ids.end(), tokens.as<int32_t>());

  Values embedded;
  for (int32_t id : ids) {
    const auto row = c.op_case.weights[0].values.begin() + id * 5;
    embedded.insert(embedded.end(), row, row + 5);
  }
  c.op_case.inputs[0].values = embedded;
  const Reference untied = reference_of(c, DType::kF32);
  Values want = untied.gradients[1];
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t h = 0; h < 5; ++h) want[static_cast<size_t>(ids[t]) * 5 + h] += untied.gradients[0][t * 5 + h];
  }

  OpCase tied = c.op_case;
  tied.inputs.clear();
  tied.op = [&](Tape& tape, const std::vector<Var>&, const std::vector<Weight*>& w) {
    linear_cross_entropy(tape, embedding(tape, tokens, *w[0], DType::kF32), *w[0], nullptr, c.loss);
    return std::vector<Var>{};
  };
  expect_close(run_op(tied, {}).gradients[0], want, 1e-5, "tied weight");
}

/// Runs the launcher alone on logits given by x = 1, w = logits.
struct Direct {
  explicit Direct(std::vector<float> logits) : pool(2), stream(pool), scratch(test_device(), "scratch") {
    memory = Buffer(test_device(), 4096 + logits.size() * 4);
    scratch.reserve(size_t{1} << 20);
    args.x = memory.tensor({1, 1}, DType::kF32);
    args.w = memory.tensor({static_cast<int64_t>(logits.size()), 1}, DType::kF32, 4096);
    args.tokens = {.rows = memory.tensor({1}, DType::kI32, 256),
                   .targets = memory.tensor({1}, DType::kI32, 512),
                   .weights = memory.tensor({1}, DType::kF32, 768)};
    *args.x.as<float>() = *args.tokens.weights.as<float>() = 1.0f;
    std::copy(logits.begin(), logits.end(), args.w.as<float>());
    args.scalars = &scalars;
    args.totals = &totals;
  }
  LossTotals run(int32_t target) {
    totals = {};
    *args.tokens.targets.as<int32_t>() = target;
    linear_cross_entropy(Context(stream, scratch), args);
    stream.synchronize();
    return totals;
  }

  ThreadPool pool;
  TestStream stream;
  Arena scratch;
  Buffer memory;
  StepScalars scalars;
  LossTotals totals;
  LinearCrossEntropyArgs args;
};

TEST(LinearCrossEntropy, OfEqualLogitsTheFirstIsTheHit) {
  Direct direct({1, 4, 2, 4, 4});
  EXPECT_EQ(direct.run(1).hits, 1);
  EXPECT_EQ(direct.run(3).hits, 0);
  EXPECT_EQ(direct.run(4).hits, 0);
  EXPECT_EQ(direct.run(0).hits, 0);
}

TEST(LinearCrossEntropy, AccumulatesIntoTotalsOverCalls) {
  Direct direct(std::vector<float>(8, 0.5f));
  direct.run(2);
  linear_cross_entropy(Context(direct.stream, direct.scratch), direct.args);
  direct.stream.synchronize();
  EXPECT_NEAR(direct.totals.weighted_loss, 2 * std::log(8.0), 1e-6);
  EXPECT_NEAR(direct.totals.entropy, 2 * std::log(8.0), 1e-6);
  EXPECT_EQ(direct.totals.tokens, 2);
}

TEST(LinearCrossEntropy, LargeLogitsDoNotOverflow) {
  Direct direct({3e4f, -3e4f, 2.9999e4f});
  const LossTotals totals = direct.run(1);
  EXPECT_NEAR(totals.weighted_loss, 6e4 + std::log1p(std::exp(-1.0)), 1e-2);
}

TEST(LinearCrossEntropy, LostNumbersReachTheLoss) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_FALSE(std::isfinite(Direct({1, bad, 2}).run(0).weighted_loss));
  }
}

TEST(LinearCrossEntropy, ATargetOutsideTheVocabularyIsCaught) {
  Direct direct({1, 2, 3});
  EXPECT_ANY_THROW(direct.run(3));
  EXPECT_ANY_THROW(direct.run(-1));
}

TEST(LinearCrossEntropy, EvaluationComputesTheLossOnly) {
  HeadCase c({7, 13, 31, 3});
  const Reference want = reference_of(c, DType::kF32);
  ThreadPool pool(2);
  TestStream stream(pool);
  TapeMemory memory{test_device()};
  TapePlan plan;
  Buffer x_memory(test_device(), 7 * 13 * sizeof(float));
  const Tensor x = x_memory.tensor({7, 13}, DType::kF32);
  for (size_t i = 0; i < 7 * 13; ++i) x.as<float>()[i] = static_cast<float>(c.op_case.inputs[0].values[i]);
  testing::TestWeight w(c.op_case.weights[0], DType::kF32);
  for (int pass = 0; pass < 3; ++pass) {  // dry for the plan, dry for the sizes, then for real
    pass < 2 ? memory.begin_dry() : memory.reserve();
    const Context context(stream, memory.scratch);
    Tape tape(context, memory, plan, {});
    tape.block([&] { linear_cross_entropy(tape, tape.input(x), w, nullptr, c.loss); });
    stream.synchronize();
  }
  EXPECT_NEAR(c.totals.weighted_loss, want.totals.weighted_loss, 1e-4);
  EXPECT_EQ(w.grad().beta, 0.0f) << "no gradient was asked for";
}

TEST(LinearCrossEntropy, RunsTheLargestVocabularyInBoundedScratch) {
  HeadCase c({4, 64, 151936, 3});
  c.loss.max_logits_bytes = 2 * 151936 * 4;
  const OpResult got = run_op(c.op_case, {.dtype = DType::kBF16});
  const Reference want = reference_of(c, DType::kBF16);
  expect_close(got.gradients[0], want.gradients[0], 1e-5 + 0x1p-8, "dX");
  expect_close(got.gradients[1], want.gradients[1], 1e-5, "dW");
  EXPECT_NEAR(c.totals.weighted_loss, want.totals.weighted_loss, 1e-4);
}

}  // namespace
}  // namespace hone
