#include "ops/grad_norm/grad_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;
using testing::TestStruct;

struct Fixture {
  explicit Fixture(int threads = 2)
      : pool(threads), stream(pool), scratch(test_device(), "scratch"), results(test_device(), 512) {
    scratch.reserve(1 << 16);
    args.sum_of_squares = results.tensor({1}, DType::kF64);
    args.first_nonfinite = results.tensor({1}, DType::kI32, 256);
  }

  void add_gradient(const std::vector<float>& values) {
    buffers.emplace_back(test_device(), std::max<size_t>(values.size() * sizeof(float), 1));
    args.gradients.push_back(buffers.back().tensor({static_cast<int64_t>(values.size())}, DType::kF32));
    stream.upload<float>(args.gradients.back(), values);
  }
  void run() {
    const Context context(stream, scratch);
    const TestStruct<StepScalars> memory(scalars);
    sum_of_squares(context, args);
    finish_grad_norm(context, {.sum_of_squares = args.sum_of_squares, .scalars = memory.get()});
    stream.synchronize();
    scalars = memory.read();
  }
  double sum() { return stream.download<double>(args.sum_of_squares)[0]; }
  int32_t first_nonfinite() { return stream.download<int32_t>(args.first_nonfinite)[0]; }

  ThreadPool pool;
  TestStream stream;
  Arena scratch;
  Buffer results;
  std::vector<Buffer> buffers;
  SumOfSquaresArgs args;
  StepScalars scalars;
};

std::vector<float> random_values(size_t n, uint64_t key) {
  PhiloxSequence random(mix_key(32, key));
  std::vector<float> values(n);
  for (float& value : values) value = random.normal();
  return values;
}

TEST(GradNorm, IsTheNormOfAllGradientsWhateverTheNumberOfThreads) {
  double sums[2];
  for (int threads : {1, 2}) {
    Fixture fixture(threads);
    double want = 0;
    uint64_t key = 0;
    for (size_t n : {1, 0, 150001, 65536, 7}) {
      const std::vector<float> values = random_values(n, key++);
      for (float value : values) want += static_cast<double>(value) * value;
      fixture.add_gradient(values);
    }
    fixture.run();
    sums[threads - 1] = fixture.sum();
    EXPECT_NEAR(fixture.sum(), want, want * 1e-12);
    EXPECT_EQ(fixture.scalars.grad_norm, static_cast<float>(std::sqrt(fixture.sum())));
    EXPECT_EQ(fixture.scalars.clip_coefficient, 1.0f) << "max_grad_norm 0 does not clip";
    EXPECT_EQ(fixture.scalars.nonfinite, 0);
    EXPECT_EQ(fixture.first_nonfinite(), -1);
  }
  EXPECT_EQ(sums[0], sums[1]);
}

TEST(GradNorm, TakesHundredsOfSmallGradients) {
  Fixture fixture;
  double want = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    const std::vector<float> values = random_values(1 + 5 * i, i);
    for (float value : values) want += static_cast<double>(value) * static_cast<double>(value);
    fixture.add_gradient(values);
  }
  fixture.add_gradient({1.0f, std::nanf("")});
  fixture.run();
  EXPECT_EQ(fixture.first_nonfinite(), 300);
  fixture.args.gradients.pop_back();
  fixture.run();
  EXPECT_NEAR(fixture.sum(), want, want * 1e-12);
  EXPECT_EQ(fixture.first_nonfinite(), -1);
}

TEST(GradNorm, OfNothingIsZero) {
  Fixture fixture;
  fixture.run();
  EXPECT_EQ(fixture.sum(), 0.0);
  EXPECT_EQ(fixture.first_nonfinite(), -1);
}

TEST(GradNorm, ClipsOnlyAboveTheMaximum) {
  for (const auto& [max_norm, coefficient] :
       {std::pair{10.0f, 1.0f}, {5.0f, 5.0f / 5.000001f}, {1.0f, 1.0f / 5.000001f}}) {
    Fixture fixture;
    fixture.add_gradient({3.0f});
    fixture.add_gradient({0.0f, -4.0f});
    fixture.scalars.max_grad_norm = max_norm;
    fixture.run();
    EXPECT_EQ(fixture.scalars.grad_norm, 5.0f);
    EXPECT_FLOAT_EQ(fixture.scalars.clip_coefficient, coefficient);
  }
}

TEST(GradNorm, NamesTheFirstGradientThatLostItsNumbers) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Fixture fixture;
    fixture.scalars.max_grad_norm = 1;
    fixture.add_gradient(random_values(70000, 1));
    fixture.add_gradient({});
    std::vector<float> values = random_values(140000, 2);
    values.back() = bad;
    fixture.add_gradient(values);
    fixture.add_gradient({bad});
    fixture.run();
    EXPECT_EQ(fixture.first_nonfinite(), 2);
    EXPECT_EQ(fixture.scalars.nonfinite, 1);
    EXPECT_FALSE(std::isfinite(fixture.scalars.grad_norm));
  }
}

TEST(GradNorm, LargeFiniteGradientsAreNotLost) {
  Fixture fixture;
  fixture.add_gradient({1e30f, 0.0f});
  fixture.run();
  EXPECT_EQ(fixture.scalars.nonfinite, 0);
  EXPECT_FLOAT_EQ(fixture.scalars.grad_norm, 1e30f);
}

}  // namespace
}  // namespace hone
