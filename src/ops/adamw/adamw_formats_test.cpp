// Tests AdamW with parameters, gradients and moments narrower than float32.
#include <algorithm>

#include "ops/adamw/adamw_testing.h"

namespace hone {
namespace {

using testing::AdamwFormats;
using testing::ExactAdamw;
using testing::host_values;
using testing::random_values;
using testing::values_of;
using Fixture = testing::AdamwFixture;
using Parameter = testing::AdamwParameter;

constexpr AdamwFormats kCodes{.m = DType::kI8, .v = DType::kU8};

/// The range of stored results for `value`. Float32 arithmetic has an error of a few 2^-24 of the value.
struct Interval {
  double low, high;
};

Interval widened(double low, double high) {
  const double slack = 32 * 0x1p-24 * std::max(std::abs(low), std::abs(high));
  return {low - slack, high + slack};
}

Interval stored_bf16(double value) {
  const double step = std::ldexp(1.0, std::ilogb(value == 0 ? 1.0 : value) - 7);
  return widened(std::floor(value / step) * step, std::ceil(value / step) * step);
}

/// Range between the two adjacent codes of value / scale, times the scale.
template <bool kSigned>
Interval stored_code(double value, double scale) {
  if (scale == 0) return {0, 0};
  auto values = dynamic_values<kSigned>();
  std::sort(values.begin(), values.end());
  const double ratio = value / scale, near = 32 * 0x1p-24;
  double low = static_cast<double>(values.front()), high = static_cast<double>(values.back());
  for (float code : values) {
    if (static_cast<double>(code) <= ratio * (1 - std::copysign(near, ratio))) low = static_cast<double>(code);
  }
  for (size_t i = values.size(); i-- > 0;) {
    if (static_cast<double>(values[i]) >= ratio * (1 + std::copysign(near, ratio)))
      high = static_cast<double>(values[i]);
  }
  if (!kSigned && value > 0) low = std::max(low, static_cast<double>(values[1]));
  return widened(std::min(low * scale, high * scale), std::max(low * scale, high * scale));
}

/// A moment in float64, and the error of float32 arithmetic before it is stored.
struct ExactMoment {
  double value, error;
};

template <bool kSigned>
void expect_stored(const Moment& moment, const std::vector<ExactMoment>& exact) {
  const std::vector<float> got = values_of(moment);
  for (size_t i = 0; i < exact.size(); ++i) {
    const size_t block = i / kMomentBlock * kMomentBlock, end = std::min(exact.size(), block + kMomentBlock);
    double scale = 0;
    for (size_t j = block; j < end; ++j) {
      if (std::abs(exact[j].value) > std::abs(scale)) scale = exact[j].value;
    }
    const auto stored = [&](double value) {
      if (size_of(moment.values.dtype) == 1) return stored_code<kSigned>(value, scale);
      return moment.values.dtype == DType::kBF16 ? stored_bf16(value) : widened(value, value);
    };
    const auto [value, error] = exact[i];
    const Interval wanted{stored(value - error).low, stored(value + error).high};
    ASSERT_GE(got[i], wanted.low) << i << " of " << exact.size();
    ASSERT_LE(got[i], wanted.high) << i << " of " << exact.size();
  }
}

/// Compares each step with float64, starting from the stored results of the previous step.
void expect_steps_from_what_is_stored(AdamwFormats formats) {
  Fixture fixture;
  for (int64_t n : {1, 255, 263, 9001}) fixture.add(n, 0.1, 0, formats);
  for (int64_t offset : {1, 2, 3}) fixture.add(1031, 0.0, offset, formats);
  for (int t = 1; t <= 4; ++t) {
    std::vector<std::vector<ExactAdamw>> exact;
    std::vector<std::vector<float>> gradients, before;
    for (const AdamwTensor& tensor : fixture.args.tensors) {
      gradients.push_back(random_values(tensor.parameter.numel(), 50 * exact.size() + static_cast<uint64_t>(t)));
      if (formats.gradient == DType::kBF16) {
        for (float& value : gradients.back()) value = static_cast<float>(BFloat16(value));
      }
      const std::vector<float> p = values_of(tensor.parameter), m = values_of(tensor.m), v = values_of(tensor.v);
      before.push_back(m);
      exact.emplace_back();
      for (size_t i = 0; i < p.size(); ++i) {
        exact.back().push_back({static_cast<double>(p[i]), static_cast<double>(m[i]), static_cast<double>(v[i])});
        exact.back().back().step(t, static_cast<double>(gradients.back()[i]), 1e-2, tensor.weight_decay);
      }
    }
    fixture.step(t, gradients);
    for (size_t k = 0; k < exact.size(); ++k) {
      SCOPED_TRACE(::testing::Message() << "tensor " << k << ", step " << t);
      const AdamwTensor& tensor = fixture.args.tensors[k];
      std::vector<ExactMoment> m, v;
      const std::vector<float> p = values_of(tensor.parameter);
      for (size_t i = 0; i < p.size(); ++i) {
        // m may be a small difference of its two addends; v is a sum.
        m.push_back({exact[k][i].m, 0x1p-22 * (std::abs(before[k][i]) + 0.1 * std::abs(gradients[k][i]))});
        v.push_back({exact[k][i].v, 0.0});
        // A step of at most ten learning rates (√10 · √1000 / √10) carries some thirty roundings.
        const double want = exact[k][i].p, slack = 2 * 0x1p-24 * std::abs(want) + 0.1 * 2e-6;
        const Interval stored = formats.parameter == DType::kBF16
                                    ? Interval{stored_bf16(want - slack).low, stored_bf16(want + slack).high}
                                    : Interval{want - slack, want + slack};
        ASSERT_GE(p[i], stored.low) << i;
        ASSERT_LE(p[i], stored.high) << i;
      }
      expect_stored<true>(tensor.m, m);
      expect_stored<false>(tensor.v, v);
      if (!tensor.working_copy.defined()) continue;
      const std::vector<BFloat16> copy = host_values<BFloat16>(tensor.working_copy);
      for (size_t i = 0; i < p.size(); ++i) ASSERT_EQ(copy[i].bits, BFloat16(p[i]).bits);
    }
  }
}

TEST(AdamwFormats, EveryOneStepsFromWhatIsStored) {
  for (DType parameter : {DType::kF32, DType::kBF16}) {
    for (DType gradient : {DType::kF32, DType::kBF16}) {
      for (DType m : {DType::kF32, DType::kBF16, DType::kI8}) {
        for (DType v : {DType::kF32, DType::kBF16, DType::kU8}) {
          SCOPED_TRACE(::testing::Message()
                       << name_of(parameter) << ", " << name_of(gradient) << ", " << name_of(m) << ", " << name_of(v));
          expect_steps_from_what_is_stored({parameter, gradient, m, v});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(AdamwFormats, OneCallTakesTensorsOfDifferentOnes) {
  Fixture together, apart;
  const std::vector<AdamwFormats> formats = {{}, kCodes, {.parameter = DType::kBF16}, kCodes, {}};
  std::vector<std::vector<float>> gradients;
  for (size_t i = 0; i < formats.size(); ++i) {
    const auto n = static_cast<int64_t>(1000 + 77 * i);
    together.add(n, 0.1, 0, formats[i]);
    gradients.push_back(random_values(n, i));
  }
  together.step(1, gradients);
  for (size_t i = 0; i < formats.size(); ++i) {
    Fixture alone;
    alone.add(static_cast<int64_t>(1000 + 77 * i), 0.1, 0, formats[i]);
    alone.args.tensors[0].stream_id = static_cast<uint32_t>(i + 1);
    alone.step(1, {gradients[i]});
    EXPECT_EQ(values_of(alone.args.tensors[0].parameter), values_of(together.args.tensors[i].parameter));
    EXPECT_EQ(values_of(alone.args.tensors[0].v), values_of(together.args.tensors[i].v));
  }
}

/// A change of a hundredth of the distance of two bfloat16 changes one in a hundred values, instead of none.
TEST(AdamwFormats, SmallStepsOfBfloat16ParametersAddUp) {
  constexpr int kSteps = 200;
  Fixture fixture;
  fixture.add(4096, 0.0, 0, {.parameter = DType::kBF16});
  fixture.learning_rate = static_cast<float>(0x1p-7 / 100);
  testing::write_values(fixture.args.tensors[0].parameter, std::vector<float>(4096, 1.5f));
  const std::vector<float> gradient(4096, -1.0f);
  for (int t = 1; t <= kSteps; ++t) fixture.step(t, {gradient});
  double sum = 0;
  for (float p : values_of(fixture.args.tensors[0].parameter)) sum += static_cast<double>(p);
  // 200 Bernoulli steps of 2^-7 with probability 1/100: deviation 2^-7 · √2, of the mean of 4096 a 64th; six of them.
  EXPECT_NEAR(sum / 4096, 1.5 + kSteps * static_cast<double>(fixture.learning_rate), 6 * 0x1p-7 * std::sqrt(2.0) / 64);
}

TEST(AdamwFormats, SmallChangesOfCodesAddUp) {
  Fixture fixture;
  fixture.add(4096, 0.0, 0, kCodes);
  // One element of a block is the scale; the others are a third of it, and their squares a ninth.
  std::vector<float> gradient(4096, 4.0f / 3);
  for (size_t i = 0; i < gradient.size(); i += kMomentBlock) gradient[i] = 4.0f;
  for (int t = 1; t <= 700; ++t) fixture.step(t, {gradient});
  double sum = 0;
  const std::vector<float> v = values_of(fixture.args.tensors[0].v);
  for (size_t i = 0; i < v.size(); ++i) sum += i % kMomentBlock != 0 ? static_cast<double>(v[i]) : 0.0;
  const double count = 4096 - 16, full = 1 - std::pow(0.999, 700);
  // Adjacent codes are 0.9 / 128 of the scale apart, which is at most `full`: 700 random roundings of half of that.
  EXPECT_NEAR(sum / count, full / 9, 6 * 0.5 * 0.9 / 128 * full * std::sqrt(700.0 / count));
}

/// The cost of 8 bits in 50 steps of Gaussian gradients, in learning rates. m has a deviation of 0.23 (√(0.1 / 1.9))
/// and few values of a block exceed four of them, so adjacent codes are at most 0.9 / 64 · 0.92 = 0.013 apart, and a
/// rounding has a deviation of at most half of that; it affects the next steps times 0.9, 0.9², …: 9 times in sum. Over
/// 50 independent roundings: √50 · 9 · 0.0065 = 0.41. v's largest value is 2.2 times its mean: a rounding is at most
/// half of 0.9 / 128 · 2.2 = 0.0078 of v, √(50 / 3) of them 3 %, half of that for the root, times moves of 0.23, 50 of
/// them: 0.18. float64 moves by about √50.
TEST(AdamwFormats, CodesCostAFewPercentOfTheWay) {
  constexpr int64_t kElements = 1 << 15;
  constexpr int kSteps = 50;
  Fixture fixture;
  fixture.add(kElements, 0.0, 0, kCodes);
  std::vector<ExactAdamw> exact;
  for (float start : fixture.parameters[0]->start) exact.push_back({.p = static_cast<double>(start)});
  for (int t = 1; t <= kSteps; ++t) {
    const std::vector<float> gradient = random_values(kElements, 900 + static_cast<uint64_t>(t));
    for (size_t i = 0; i < exact.size(); ++i) exact[i].step(t, static_cast<double>(gradient[i]), 1e-2, 0.0);
    fixture.step(t, {gradient});
  }
  const std::vector<float> got = values_of(fixture.args.tensors[0].parameter);
  double error = 0, way = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - exact[i].p, 2);
    way += std::pow(exact[i].p - static_cast<double>(fixture.parameters[0]->start[i]), 2);
  }
  error = std::sqrt(error / kElements) / 1e-2;
  way = std::sqrt(way / kElements) / 1e-2;
  EXPECT_LT(error, 0.41 + 0.18);
  EXPECT_GT(way, 5.0);
}

/// An element whose gradients are a ten-thousandth of its neighbours' has a v below all codes. If v became 0, the step
/// would be m / eps.
TEST(AdamwFormats, SmallElementsOfABlockOfCodesMoveByTheLearningRateAtMost) {
  Fixture fixture;
  fixture.add(512, 0.0, 0, kCodes);
  for (int t = 1; t <= 30; ++t) {
    std::vector<float> gradient = random_values(512, static_cast<uint64_t>(t));
    for (size_t i = 1; i < gradient.size(); ++i) gradient[i] *= i % 3 == 0 ? 1e-4f : i % 3 == 1 ? 1e-7f : 1e-12f;
    if (t > 20) std::fill(gradient.begin(), gradient.end(), 0.0f);
    const std::vector<float> before = values_of(fixture.args.tensors[0].parameter);
    fixture.step(t, {gradient});
    const std::vector<float> after = values_of(fixture.args.tensors[0].parameter);
    // m̂ / √v̂ is at most (1 - β1) / √(1 - β2) / (1 - β1^t) · √(1 - β2^t) ≤ 3.2 in exact arithmetic.
    for (size_t i = 0; i < after.size(); ++i) {
      ASSERT_TRUE(std::isfinite(after[i]));
      ASSERT_LE(std::abs(after[i] - before[i]), 3.2f * 1e-2f * 1.01f) << i << ", step " << t;
    }
  }
}

TEST(AdamwFormats, HugeGradientsLeaveFiniteCodes) {
  Fixture fixture;
  fixture.add(300, 0.0, 0, kCodes);
  std::vector<float> gradient = random_values(300, 3);
  gradient[7] = 3e38f;
  for (int t = 1; t <= 2; ++t) fixture.step(t, {gradient});
  for (const auto& values : {values_of(fixture.args.tensors[0].m), values_of(fixture.args.tensors[0].v),
                             values_of(fixture.args.tensors[0].parameter)}) {
    for (float value : values) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(AdamwFormats, CodesDoNotDependOnTheNumberOfThreads) {
  std::vector<float> results[2];
  for (int threads : {1, 2}) {
    Fixture fixture(threads);
    fixture.add(30001, 0.1, 0, {DType::kBF16, DType::kBF16, DType::kI8, DType::kU8});
    for (int t = 1; t <= 3; ++t) fixture.step(t, {random_values(30001, static_cast<uint64_t>(t))});
    results[threads - 1] = values_of(fixture.args.tensors[0].parameter);
    const std::vector<float> m = values_of(fixture.args.tensors[0].m), v = values_of(fixture.args.tensors[0].v);
    results[threads - 1].insert(results[threads - 1].end(), m.begin(), m.end());
    results[threads - 1].insert(results[threads - 1].end(), v.begin(), v.end());
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace hone
