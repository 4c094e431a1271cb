#include "ops/adamw/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.h"
#include "ops/op_harness.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

std::vector<float> random_values(int64_t n, uint64_t key) {
  PhiloxSequence random(mix_key(31, key));
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = random.normal();
  return values;
}

/// A parameter of n elements with its optimizer state in one buffer.
struct Fixture {
  explicit Fixture(int64_t n, int threads = 2)
      : pool(threads),
        stream(pool),
        scratch(test_device(), "scratch"),
        memory(test_device(), static_cast<size_t>(n) * 5 * sizeof(float)) {
    scratch.reserve(0);
    const size_t bytes = static_cast<size_t>(n) * sizeof(float);
    args = {.parameter = memory.tensor({n}, DType::kF32),
            .working_copy = memory.tensor({n}, DType::kBF16, 4 * bytes),
            .m = memory.tensor({n}, DType::kF32, bytes),
            .v = memory.tensor({n}, DType::kF32, 2 * bytes),
            .gradient = memory.tensor({n}, DType::kF32, 3 * bytes),
            .scalars = &scalars,
            .weight_decay = 0.1};
    stream.upload<float>(args.m, std::vector<float>(static_cast<size_t>(n), 0.0f));
    stream.upload<float>(args.v, std::vector<float>(static_cast<size_t>(n), 0.0f));
  }

  void step(int t, const std::vector<float>& gradient) {
    stream.synchronize();
    scalars.learning_rate = 1e-2f;
    scalars.clip_coefficient = 0.25f;
    scalars.bias_correction1 = static_cast<float>(1 - std::pow(args.beta1, t));
    scalars.bias_correction2 = static_cast<float>(1 - std::pow(args.beta2, t));
    stream.upload<float>(args.gradient, gradient);
    adamw(Context(stream, scratch), args);
  }

  ThreadPool pool;
  TestStream stream;
  Arena scratch;
  Buffer memory;
  StepScalars scalars;
  AdamwArgs args;
};

TEST(Adamw, FollowsTheFormulaOverSeveralSteps) {
  for (int64_t n : {1, 17, 20011}) {
    Fixture fixture(n);
    const std::vector<float> start = random_values(n, 1);
    fixture.stream.upload<float>(fixture.args.parameter, start);
    std::vector<double> p(start.begin(), start.end()), m(p.size(), 0.0), v(p.size(), 0.0);
    for (int t = 1; t <= 5; ++t) {
      const std::vector<float> gradient = random_values(n, 100 + static_cast<uint64_t>(t));
      fixture.step(t, gradient);
      for (size_t i = 0; i < p.size(); ++i) {
        const double g = gradient[i] * 0.25;
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.999 * v[i] + 0.001 * g * g;
        const double corrected_m = m[i] / (1 - std::pow(0.9, t)), corrected_v = v[i] / (1 - std::pow(0.999, t));
        p[i] = p[i] * (1 - 1e-2 * 0.1) - 1e-2 * corrected_m / (std::sqrt(corrected_v) + 1e-8);
      }
    }
    const std::vector<float> got = fixture.stream.download<float>(fixture.args.parameter);
    const std::vector<BFloat16> copy = fixture.stream.download<BFloat16>(fixture.args.working_copy);
    for (size_t i = 0; i < p.size(); ++i) {
      // Per step the parameter is rounded twice (2^-24 of it), and its change, at most 2 · lr, carries some thirty
      // roundings.
      ASSERT_NEAR(got[i], p[i], 5 * (2 * 0x1p-24 * std::abs(p[i]) + 2e-2 * 2e-6)) << i;
      ASSERT_EQ(copy[i].bits, BFloat16(got[i]).bits);
    }
  }
}

TEST(Adamw, TheFirstStepMovesByTheLearningRate) {
  Fixture fixture(1);
  fixture.args.weight_decay = 0;
  fixture.stream.upload<float>(fixture.args.parameter, {1.0f});
  fixture.step(1, {-3.0f});
  EXPECT_NEAR(fixture.stream.download<float>(fixture.args.parameter)[0], 1.01f, 1e-6);
}

TEST(Adamw, LostNumbersVoidTheStep) {
  Fixture fixture(3);
  const std::vector<float> start = {1, 2, 3};
  fixture.stream.upload<float>(fixture.args.parameter, start);
  fixture.stream.synchronize();
  fixture.scalars.nonfinite = 1;
  fixture.step(1, {std::nanf(""), 1, 1});
  EXPECT_EQ(fixture.stream.download<float>(fixture.args.parameter), start);
  EXPECT_EQ(fixture.stream.download<float>(fixture.args.m), std::vector<float>(3, 0.0f));
  EXPECT_EQ(fixture.stream.download<float>(fixture.args.v), std::vector<float>(3, 0.0f));
}

TEST(Adamw, DoesNotDependOnTheNumberOfThreads) {
  std::vector<float> results[2];
  for (int threads : {1, 2}) {
    Fixture fixture(30001, threads);
    fixture.stream.upload<float>(fixture.args.parameter, random_values(30001, 1));
    fixture.step(1, random_values(30001, 2));
    results[threads - 1] = fixture.stream.download<float>(fixture.args.parameter);
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace hone
