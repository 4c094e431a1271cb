#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/op_testing.h"
#include "ops/embedding/embedding.h"

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

StepScalars step_scalars() {
  StepScalars scalars;
  scalars.inv_loss_weight = kInvLossWeight;
  return scalars;
}

/// A head with its loss. Logits have a standard deviation of w_scale · sqrt(hidden).
struct HeadCase {
  Sizes sizes;
  std::vector<int32_t> rows, targets;
  std::vector<float> weights;
  std::vector<Buffer> memory;
  CrossEntropyLoss loss;
  testing::TestStruct<StepScalars> scalars{step_scalars()};
  testing::TestStruct<LossTotals> device_totals;
  OpCase op_case;

  explicit HeadCase(Sizes s, double w_scale = 1.0) : sizes(s) {
    PhiloxSequence random(3);
    for (int64_t t = 0; t < s.tokens; ++t) rows.push_back(static_cast<int32_t>(t));
    for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random.below(i)]);
    rows.resize(static_cast<size_t>(s.supervised));
    for (int64_t i = 0; i < s.supervised; ++i) {
      targets.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(s.vocab))));
      weights.push_back(i % 3 == 2 ? 0.0f : 0.5f + random.uniform());
    }
    if (s.supervised > 0) {
      loss.tokens = {.rows = upload(rows), .targets = upload(targets), .weights = upload(weights)};
      loss.token_loss = upload(weights);
    }
    loss.scalars = scalars.get();
    loss.totals = device_totals.get();
    op_case.inputs = {testing::random_argument({s.tokens, s.hidden}, 1)};
    op_case.weights = {testing::random_argument({s.vocab, s.hidden}, 2, w_scale)};
    if (s.rank > 0) {
      op_case.weights.push_back(testing::random_argument({s.rank, s.hidden}, 3));
      op_case.weights.push_back(testing::random_argument({s.vocab, s.rank}, 4));
    }
    op_case.op = [this](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
      device_totals.write({});
      const Adapter adapter = s_rank() ? Adapter{.lora_a = w[1], .lora_b = w[2], .scaling = kScaling} : Adapter{};
      linear_cross_entropy(tape, in[0], *w[0], s_rank() ? &adapter : nullptr, loss);
      return std::vector<Var>{};
    };
  }

  bool s_rank() const { return sizes.rank > 0; }

  /// Adds padding after the supervised tokens, at row `at`.
  void pad(int64_t entries, int32_t at) {
    const auto padded = [&](auto values, auto with) {
      values.insert(values.end(), static_cast<size_t>(entries), with);
      return upload(values);
    };
    loss.tokens = {.rows = padded(rows, at),
                   .targets = padded(targets, 0),
                   .weights = padded(weights, 0.0f),
                   .present = upload(std::vector<int32_t>{static_cast<int32_t>(sizes.supervised)})};
    loss.token_loss = upload(std::vector<float>(static_cast<size_t>(sizes.supervised + entries)));
  }

  template <class T>
  Tensor upload(const std::vector<T>& values) {
    memory.emplace_back(test_device(), values.size() * sizeof(T));
    const Tensor tensor = memory.back().tensor({static_cast<int64_t>(values.size())}, DTypeOf<T>::value);
    copy_from_host(tensor, values.data(), tensor.bytes());
    return tensor;
  }

  LossTotals totals() const { return device_totals.read(); }
  std::vector<float> token_losses() const { return testing::host_values<float>(loss.token_loss); }
};

/// Expected results, and their errors if x is bfloat16: a GPU rounds logits, gradients of logits, xa and dxa to
/// bfloat16, and a CPU with AMX all but the logits (otherwise no errors).
struct Reference {
  std::vector<Values> gradients, gradient_errors;  // for x, w and, with an adapter, A and B
  Values losses, loss_errors;
  double uncertain_hits = 0, weighted_loss_error = 0, entropy_error = 0;
  LossTotals totals;
};

double dot(const double* a, const double* b, int64_t n, int64_t b_stride = 1) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i * b_stride];
  return sum;
}

/// The formulas of the header in float64, token by token.
Reference reference_of(const HeadCase& c, DType dtype) {
  const auto [tokens, hidden, vocab, supervised, rank] = c.sizes;
  const bool rounds = test_device().kind == DeviceKind::kCuda || gemm_rounds();
  const double unit = dtype == DType::kBF16 && rounds ? 0x1p-8 : 0.0;
  const Values x = testing::rounded(c.op_case.inputs[0].values, dtype);
  std::vector<Values> w;
  Reference result;
  result.gradients.emplace_back(x.size(), 0.0);
  for (const Argument& weight : c.op_case.weights) {
    w.push_back(testing::rounded(weight.values, dtype));
    result.gradients.emplace_back(weight.values.size(), 0.0);
  }
  result.gradient_errors = result.gradients;
  const auto add = [&](size_t gradient, int64_t at, double value, double error) {
    result.gradients[gradient][static_cast<size_t>(at)] += value;
    result.gradient_errors[gradient][static_cast<size_t>(at)] += error;
  };
  for (size_t s = 0; s < c.rows.size(); ++s) {
    const double* row = x.data() + c.rows[s] * hidden;
    Values xa(static_cast<size_t>(rank)), logits(static_cast<size_t>(vocab)), dxa(xa.size(), 0.0), dxa_error(dxa);
    for (int64_t r = 0; r < rank; ++r) xa[static_cast<size_t>(r)] = dot(row, w[1].data() + r * hidden, hidden);
    double logit_error = 0;
    for (int64_t v = 0; v < vocab; ++v) {
      double& logit = logits[static_cast<size_t>(v)];
      double adapter = 0, adapter_size = 0;
      for (int64_t r = 0; r < rank; ++r) {
        const double term = kScaling * xa[static_cast<size_t>(r)] * w[2][static_cast<size_t>(v * rank + r)];
        adapter += term;
        adapter_size += std::abs(term);
      }
      logit = dot(row, w[0].data() + v * hidden, hidden) + adapter;
      // Roundings of the logit, of the adapter's part before it, and of A and xa in its terms.
      logit_error = std::max(logit_error, 1.1 * unit * (std::abs(logit) + std::abs(adapter) + 2 * adapter_size));
    }
    const auto cap = static_cast<double>(c.loss.soft_cap);
    for (double& logit : logits) logit = cap > 0 ? cap * std::tanh(logit / cap) : logit;
    logit_error += 1.1 * unit * cap;  // the cap makes no error larger, and rounds
    const auto largest = std::max_element(logits.begin(), logits.end());
    double sum = 0, entropy = 0;
    for (double logit : logits) sum += std::exp(logit - *largest);
    const double log_sum = *largest + std::log(sum);
    for (double logit : logits) entropy -= std::exp(logit - log_sum) * (logit - log_sum);
    const auto target = static_cast<size_t>(c.targets[s]);
    const double weight = c.weights[s];
    // log Σ exp changes by at most as much as the logits; a probability p by at most p · (exp(2 error) - 1). With a
    // smoothed q, Σ q · logits also changes by at most as much as the logits.
    const double smoothing = c.loss.label_smoothing;
    const double mean = std::accumulate(logits.begin(), logits.end(), 0.0) / static_cast<double>(vocab);
    result.losses.push_back(log_sum - (1 - smoothing) * logits[target] - smoothing * mean);
    result.loss_errors.push_back(2 * logit_error);
    result.weighted_loss_error += weight * 2 * logit_error;
    result.entropy_error += 2 * logit_error * (entropy + 1);
    double other = -1e300;
    for (size_t v = 0; v < logits.size(); ++v) other = std::max(other, v == target ? other : logits[v]);
    if (unit > 0 && std::abs(other - logits[target]) <= 2 * logit_error) result.uncertain_hits += 1;
    result.totals.weighted_loss += weight * result.losses.back();
    result.totals.weight += weight;
    result.totals.entropy += entropy;
    result.totals.hits += largest - logits.begin() == c.targets[s] ? 1 : 0;
    result.totals.tokens += 1;
    for (int64_t v = 0; v < vocab; ++v) {
      const auto i = static_cast<size_t>(v);
      const double scale = weight * kInvLossWeight, p = std::exp(logits[i] - log_sum);
      const double of_capped = scale * (p - (i == target ? 1 - smoothing : 0) - smoothing / static_cast<double>(vocab));
      const double d = cap > 0 ? (1 - logits[i] / cap * (logits[i] / cap)) * of_capped : of_capped;
      const double slope_error = cap > 0 ? 2 * logit_error / cap : 0.0;
      // The parts of the softmax and of a smoothed label are rounded separately, which matters if they cancel (for a
      // single logit completely).
      const double of_parts = smoothing > 0 ? 3 * 0x1p-24 * scale : 0.0;
      const double d_error = scale * p * std::expm1(2 * logit_error) + 1.1 * unit * std::abs(d) + of_parts +
                             slope_error * std::abs(of_capped);
      for (int64_t h = 0; h < hidden; ++h) {
        const double w_value = w[0][static_cast<size_t>(v * hidden + h)];
        add(0, c.rows[s] * hidden + h, d * w_value, d_error * std::abs(w_value));
        add(1, v * hidden + h, d * row[h], d_error * std::abs(row[h]));
      }
      for (int64_t r = 0; r < rank; ++r) {
        const auto at = static_cast<size_t>(r);
        const double b = kScaling * w[2][static_cast<size_t>(v * rank + r)];
        dxa[at] += d * b;
        dxa_error[at] += d_error * std::abs(b);
        add(3, v * rank + r, kScaling * d * xa[at], kScaling * std::abs(xa[at]) * (d_error + 2.2 * unit * std::abs(d)));
      }
    }
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t h = 0; h < hidden; ++h) {
        const double d = dxa[static_cast<size_t>(r)];
        const double d_error = dxa_error[static_cast<size_t>(r)] + 1.1 * unit * std::abs(d);
        const double a = w[1][static_cast<size_t>(r * hidden + h)];
        add(0, c.rows[s] * hidden + h, d * a, d_error * std::abs(a));
        add(2, r * hidden + h, d * row[h], d_error * std::abs(row[h]));
      }
    }
  }
  return result;
}

void expect_close(const Values& got, const Values& want, double tolerance, const std::string& what,
                  const Values& errors = {}) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double scale = 1e-3;
  for (double value : want) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = i < errors.size() ? errors[i] : 0.0;
    ASSERT_NEAR(got[i], want[i], tolerance * scale + error) << what << " element " << i;
  }
}

/// float32: logits of |x||w| up to some 30 have an error of 2^-20 each, which affects the softmax. bfloat16: dX is
/// rounded once (2^-8), or twice with an adapter, whose part is added to it; on a GPU plus the reference's errors.
void expect_right(HeadCase& c, DType dtype) {
  const Reference want = reference_of(c, dtype);
  const OpResult got = run_op(c.op_case, {.dtype = dtype});
  const double rounding = dtype == DType::kF32 ? 0.0 : c.sizes.rank > 0 ? 0x1p-7 : 0x1p-8;
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    expect_close(got.gradients[i], want.gradients[i], 1e-5 + (i == 0 ? rounding : 0.0), "gradient " + std::to_string(i),
                 want.gradient_errors[i]);
  }
  const std::vector<float> losses = want.losses.empty() ? std::vector<float>{} : c.token_losses();
  for (size_t s = 0; s < want.losses.size(); ++s) {
    ASSERT_NEAR(losses[s], want.losses[s], 1e-5 * 30 + want.loss_errors[s]) << s;
  }
  const double count = want.totals.tokens;
  const LossTotals totals = c.totals();
  EXPECT_NEAR(totals.weighted_loss, want.totals.weighted_loss, 1e-5 * 30 * count + want.weighted_loss_error);
  EXPECT_NEAR(totals.weight, want.totals.weight, 1e-9);
  EXPECT_NEAR(totals.entropy, want.totals.entropy, 1e-5 * 30 * count + want.entropy_error);
  EXPECT_NEAR(totals.hits, want.totals.hits, want.uncertain_hits);
  EXPECT_EQ(totals.tokens, want.totals.tokens);
  for (const testing::RunOptions& options :
       {testing::RunOptions{.dtype = dtype, .recompute = true}, testing::RunOptions{.dtype = dtype, .threads = 1}}) {
    EXPECT_EQ(run_op(c.op_case, options).gradients, got.gradients);
    EXPECT_EQ(c.totals().weighted_loss, totals.weighted_loss);
  }
}

/// Logits of order 1, which are accurate in bfloat16 on a GPU, and of order sqrt(hidden).
void expect_right(const Sizes& sizes, float label_smoothing = 0, float soft_cap = 0) {
  SCOPED_TRACE(::testing::Message() << "T " << sizes.tokens << " V " << sizes.vocab << " S " << sizes.supervised);
  HeadCase large(sizes), small(sizes, 1 / std::sqrt(static_cast<double>(sizes.hidden)));
  large.loss.label_smoothing = small.loss.label_smoothing = label_smoothing;
  large.loss.soft_cap = small.loss.soft_cap = soft_cap;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_right(large, dtype);
    expect_right(small, dtype);
  }
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

const Sizes kSizes[] = {{1, 1, 1, 1},      {1, 5, 3, 0},      {7, 13, 31, 3},
                        {19, 3, 1031, 19}, {64, 33, 127, 31}, {300, 17, 67, 300}};

TEST(LinearCrossEntropy, MatchesTheReferenceAndItsGradients) {
  for (const Sizes& sizes : kSizes) expect_right(sizes);
}

TEST(LinearCrossEntropy, MatchesTheReferenceWithAnAdapter) {
  for (const Sizes& sizes : {Sizes{1, 1, 1, 1, 1}, {7, 13, 31, 3, 2}, {23, 6, 101, 11, 5}, {40, 24, 64, 33, 8}}) {
    expect_right(sizes);
  }
}

TEST(LinearCrossEntropy, SmoothsLabels) {
  for (const Sizes& sizes : kSizes) expect_right(sizes, 0.1f);
  for (const Sizes& sizes : {Sizes{7, 13, 31, 3, 2}, {23, 6, 101, 11, 5}}) expect_right(sizes, 0.75f);
}

TEST(LinearCrossEntropy, CapsLogits) {
  for (const Sizes& sizes : kSizes) expect_right(sizes, 0.0f, 3.0f);
  for (const Sizes& sizes : {Sizes{7, 13, 31, 3, 2}, {23, 6, 101, 11, 5}}) expect_right(sizes, 0.1f, 30.0f);
}

/// Compares the reference's own gradient of the weighted loss with its central differences.
TEST(LinearCrossEntropy, TheReferenceDifferentiatesItsLoss) {
  for (const auto& [smoothing, cap] : {std::pair{0.0f, 0.0f}, {0.1f, 0.0f}, {0.75f, 0.0f}, {0.1f, 3.0f}}) {
    HeadCase c({7, 13, 31, 5, 2});
    c.loss.label_smoothing = smoothing;
    c.loss.soft_cap = cap;
    const std::vector<Values> gradients = reference_of(c, DType::kF32).gradients;
    std::vector<Argument*> arguments = {&c.op_case.inputs[0]};
    for (Argument& weight : c.op_case.weights) arguments.push_back(&weight);
    for (size_t a = 0; a < arguments.size(); ++a) {
      Values& values = arguments[a]->values;
      double largest = 1e-3;
      for (double value : gradients[a]) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < values.size(); i += 3) {
        constexpr double kStep = 0x1p-10;
        const double at = static_cast<double>(static_cast<float>(values[i]));  // the reference rounds its arguments
        const auto loss_at = [&](double value) {
          values[i] = value;
          return reference_of(c, DType::kF32).totals.weighted_loss * static_cast<double>(kInvLossWeight);
        };
        const double above = loss_at(static_cast<float>(at + kStep)), below = loss_at(static_cast<float>(at - kStep));
        const double distance =
            static_cast<double>(static_cast<float>(at + kStep)) - static_cast<double>(static_cast<float>(at - kStep));
        values[i] = at;
        // Second order in the step: kStep² times third derivatives, which are those of a softmax of inputs of order 5.
        ASSERT_NEAR((above - below) / distance, gradients[a][i], 1e-3 * largest) << "argument " << a << " at " << i;
      }
    }
  }
}

/// A scale of the logits equals a scale of the weights; a power of two is exact.
TEST(LinearCrossEntropy, ScalesLogitsAsScaledWeightsWould) {
  const Sizes sizes{23, 6, 101, 11, 5};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    HeadCase scaled(sizes), reference(sizes);
    scaled.loss.logit_scale = 0.25f;
    for (const size_t weight : {size_t{0}, size_t{2}}) {
      for (double& value : reference.op_case.weights[weight].values) value *= 0.25;
    }
    const OpResult got = run_op(scaled.op_case, {.dtype = dtype});
    OpResult want = run_op(reference.op_case, {.dtype = dtype});
    for (const size_t gradient : {size_t{1}, size_t{3}}) {  // for w and B
      for (double& value : want.gradients[gradient]) value *= 0.25;
    }
    EXPECT_EQ(got.gradients, want.gradients);
    EXPECT_EQ(scaled.token_losses(), reference.token_losses());
    EXPECT_EQ(scaled.totals().entropy, reference.totals().entropy);
  }
}

TEST(LinearCrossEntropy, ChunksOfAnySizeGiveTheSame) {
  HeadCase c({40, 11, 53, 37, 3});
  const OpResult whole = run_op(c.op_case, {});
  const LossTotals totals = c.totals();
  for (int64_t rows : {1, 2, 5, 36}) {
    c.loss.max_logits_bytes = rows * 53 * 4;
    expect_right(c, DType::kF32);
    if (test_device().kind == DeviceKind::kCuda) continue;  // the algorithm of a product may change with its rows
    const OpResult chunked = run_op(c.op_case, {});
    EXPECT_EQ(chunked.gradients[0], whole.gradients[0]) << "dX, bit for bit";
    EXPECT_EQ(c.totals().weighted_loss, totals.weighted_loss);
    EXPECT_EQ(c.totals().entropy, totals.entropy);
  }
}

TEST(LinearCrossEntropy, ChunksAddUpInFloat32WhereTheGradientOfTheWeightIsBfloat16) {
  HeadCase c({40, 11, 53, 37, 3});
  c.op_case.weights[0].takes_narrow_gradient = true;
  c.loss.max_logits_bytes = 5 * 53 * 4;
  for (DType dtype : {DType::kF32, DType::kBF16}) testing::expect_narrow_gradients(c.op_case, dtype);
}

TEST(LinearCrossEntropy, NoSupervisedTokenGivesZeroGradients) {
  HeadCase c({5, 7, 11, 0, 2});
  const OpResult got = run_op(c.op_case, {});
  for (const Values& gradient : got.gradients) EXPECT_EQ(gradient, Values(gradient.size(), 0.0));
  EXPECT_EQ(c.totals().tokens, 0);
}

TEST(LinearCrossEntropy, PaddingCountsForNothing) {
  for (const Sizes& sizes : {Sizes{7, 13, 31, 3, 0}, {40, 11, 53, 37, 3}, {300, 17, 67, 130, 0}, {5, 7, 11, 0, 2}}) {
    for (const int64_t entries : {1, 5, 64}) {
      HeadCase c(sizes);
      int32_t unsupervised = 0;
      while (std::count(c.rows.begin(), c.rows.end(), unsupervised) > 0) ++unsupervised;
      c.pad(entries, unsupervised);
      c.loss.max_logits_bytes = 40 * sizes.vocab * 4;  // padding fills the last chunk, or has its own chunk
      for (const DType dtype : kDTypes) expect_right(c, dtype);
    }
  }
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
  const testing::TestTensor<int32_t> tokens(ids, {6});

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

/// Runs only the launcher, on logits given by x = 1, w = logits.
struct Direct {
  Direct(const std::vector<float>& logits, DType dtype)
      : x(test_device(), 4), w(test_device(), logits.size() * 4), scratch(test_device(), "scratch") {
    scratch.reserve(size_t{1} << 20);
    args.x = tensor_of(x, {1.0f}, dtype);
    args.w = tensor_of(w, logits, dtype);
    args.tokens = {.rows = row, .targets = target, .weights = weight};
    args.scalars = scalars.get();
    args.totals = totals.get();
  }
  static Tensor tensor_of(const Buffer& memory, const std::vector<float>& values, DType dtype) {
    const Tensor tensor = memory.tensor({static_cast<int64_t>(values.size()), 1}, dtype);
    dispatch_float(dtype, [&](auto element) {
      std::vector<decltype(element)> converted;
      for (float value : values) converted.push_back(decltype(element)(value));
      copy_from_host(tensor, converted.data(), tensor.bytes());
    });
    return tensor;
  }
  LossTotals run(int32_t target_id) {
    totals.write({});
    copy_from_host(target, &target_id, sizeof target_id);
    return run_again();
  }
  LossTotals run_again() {
    linear_cross_entropy(Context(stream, scratch), args);
    stream.synchronize();
    return totals.read();
  }

  Buffer x, w;
  testing::TestTensor<int32_t> row{{0}, {1}}, target{{0}, {1}};
  testing::TestTensor<float> weight{{1.0f}, {1}};
  testing::TestStruct<StepScalars> scalars;
  testing::TestStruct<LossTotals> totals;
  ThreadPool pool{2};
  TestStream stream{pool};
  Arena scratch;
  LinearCrossEntropyArgs args;
};

TEST(LinearCrossEntropy, OfEqualLogitsTheFirstIsTheHit) {
  for (const DType dtype : kDTypes) {
    Direct direct({1, 4, 2, 4, 4}, dtype);
    EXPECT_EQ(direct.run(1).hits, 1);
    EXPECT_EQ(direct.run(3).hits, 0);
    EXPECT_EQ(direct.run(4).hits, 0);
    EXPECT_EQ(direct.run(0).hits, 0);
  }
}

TEST(LinearCrossEntropy, AccumulatesIntoTotalsOverCalls) {
  for (const DType dtype : kDTypes) {
    Direct direct(std::vector<float>(8, 0.5f), dtype);
    direct.run(2);
    const LossTotals totals = direct.run_again();
    EXPECT_NEAR(totals.weighted_loss, 2 * std::log(8.0), 1e-6);
    EXPECT_NEAR(totals.entropy, 2 * std::log(8.0), 1e-6);
    EXPECT_EQ(totals.tokens, 2);
  }
}

TEST(LinearCrossEntropy, LargeLogitsDoNotOverflow) {
  Direct direct({3e4f, -3e4f, 2.9999e4f}, DType::kF32);
  EXPECT_NEAR(direct.run(1).weighted_loss, 6e4 + std::log1p(std::exp(-1.0)), 1e-2);
  Direct rounded({0x1p15f, -0x1p15f, 0x1p15f}, DType::kBF16);
  EXPECT_NEAR(rounded.run(1).weighted_loss, 0x1p16 + std::log(2.0), 1e-2);
}

TEST(LinearCrossEntropy, LostNumbersReachTheLoss) {
  for (const DType dtype : kDTypes) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      EXPECT_FALSE(std::isfinite(Direct({1, bad, 2}, dtype).run(0).weighted_loss));
    }
  }
}

TEST(LinearCrossEntropy, ATargetOutsideTheVocabularyIsCaught) {
  for (const DType dtype : kDTypes) {
    Direct direct({1, 2, 3}, dtype);
    for (const int32_t target : {3, -1}) {
      if (test_device().kind == DeviceKind::kCpu) {
        EXPECT_ANY_THROW(direct.run(target));
      } else {
        EXPECT_TRUE(std::isnan(direct.run(target).weighted_loss));
      }
    }
  }
}

TEST(LinearCrossEntropy, EvaluationComputesTheLossOnly) {
  HeadCase c({7, 13, 31, 3});
  const Reference want = reference_of(c, DType::kF32);
  ThreadPool pool(2);
  TestStream stream(pool);
  TapeMemory memory{test_device()};
  TapePlan plan;
  const Values& x_values = c.op_case.inputs[0].values;
  const testing::TestTensor<float> x({x_values.begin(), x_values.end()}, {7, 13});
  testing::TestWeight w(c.op_case.weights[0], DType::kF32);
  for (int pass = 0; pass < 3; ++pass) {  // dry for the plan, dry for the sizes, then for real
    pass < 2 ? memory.begin_dry() : memory.reserve();
    const Context context(stream, memory.scratch);
    Tape tape(context, memory, plan, {});
    tape.block([&] { linear_cross_entropy(tape, tape.input(x), w, nullptr, c.loss); });
    stream.synchronize();
  }
  EXPECT_NEAR(c.totals().weighted_loss, want.totals.weighted_loss, 1e-4);
  EXPECT_EQ(w.grad().beta, 0.0f) << "no gradient was asked for";
}

TEST(LinearCrossEntropy, RunsTheLargestVocabularyInBoundedScratch) {
  HeadCase c({4, 64, 151936, 3});
  c.loss.max_logits_bytes = 2 * 151936 * 4;
  const OpResult got = run_op(c.op_case, {.dtype = DType::kBF16});
  const Reference want = reference_of(c, DType::kBF16);
  expect_close(got.gradients[0], want.gradients[0], 1e-5 + 0x1p-8, "dX", want.gradient_errors[0]);
  expect_close(got.gradients[1], want.gradients[1], 1e-5, "dW", want.gradient_errors[1]);
  EXPECT_NEAR(c.totals().weighted_loss, want.totals.weighted_loss, 1e-4 + want.weighted_loss_error);
}

/// Vocabularies that need each number of CTAs and registers of the kernels for Hopper. Their products are the same, so
/// that results differ only by the order of sums, and by gradients of logits that are rounded in the other direction.
TEST(LinearCrossEntropy, KernelsForOneGenerationAgreeWithTheGeneralOnes) {
  if (test_device().kind == DeviceKind::kCpu) GTEST_SKIP() << "a CPU has one kind of kernels";
  std::vector<std::pair<int64_t, float>> cases;
  for (const int64_t vocab : {31, 5000, 12000, 16001, 20001, 40007, 70001, 151936, 200003, 300001}) {
    for (const float smoothing : {0.0f, 0.1f}) cases.emplace_back(vocab, smoothing);
  }
  for (const auto& [vocab, smoothing] : cases) {
    SCOPED_TRACE(::testing::Message() << vocab << ", smoothing " << smoothing);
    HeadCase c({6, 8, vocab, 5}, 0.5);
    const Buffer dx_memory(test_device(), 6 * 8 * sizeof(BFloat16));
    const Tensor dx = dx_memory.tensor({6, 8}, DType::kBF16);
    testing::TestWeight w(c.op_case.weights[0], DType::kBF16);
    const Values& x_values = c.op_case.inputs[0].values;
    std::vector<BFloat16> x_elements;
    for (double value : x_values) x_elements.push_back(BFloat16(static_cast<float>(value)));
    const testing::TestTensor<BFloat16> x(x_elements, {6, 8});
    std::vector<float> losses[2];
    std::vector<BFloat16> gradients[2];
    LossTotals totals[2];
    for (const bool general : {false, true}) {
      ThreadPool pool(2);
      TestStream stream(pool);
      stream.use_general_kernels(general);
      Arena scratch(test_device(), "scratch");
      scratch.reserve(size_t{64} << 20);
      c.device_totals.write({});
      linear_cross_entropy(Context(stream, scratch), {.x = x,
                                                      .w = w.view().payload,
                                                      .label_smoothing = smoothing,
                                                      .tokens = c.loss.tokens,
                                                      .scalars = c.loss.scalars,
                                                      .totals = c.loss.totals,
                                                      .token_loss = c.loss.token_loss,
                                                      .dx = dx,
                                                      .dw = {},
                                                      .dlora_b = {}});
      stream.synchronize();
      losses[general] = c.token_losses();
      gradients[general] = testing::host_values<BFloat16>(dx);
      totals[general] = c.totals();
    }
    for (size_t s = 0; s < losses[0].size(); ++s) EXPECT_NEAR(losses[0][s], losses[1][s], 1e-5 * losses[1][s]);
    EXPECT_EQ(totals[0].hits, totals[1].hits);
    EXPECT_NEAR(totals[0].entropy, totals[1].entropy, 1e-5 * totals[1].entropy);
    double scale = 0;
    for (BFloat16 value : gradients[1])
      scale = std::max(scale, std::abs(static_cast<double>(static_cast<float>(value))));
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_NEAR(static_cast<float>(gradients[0][i]), static_cast<float>(gradients[1][i]), 0x1p-7 * scale) << i;
    }
  }
}

}  // namespace
}  // namespace hone
