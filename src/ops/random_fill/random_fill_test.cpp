#include "ops/random_fill/random_fill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::host_values;
using testing::test_device;
using testing::TestStream;

template <class T>
std::vector<T> filled(int64_t count, Distribution distribution, float scale, uint64_t key, int threads = 2) {
  ThreadPool pool(threads);
  TestStream stream(pool);
  Arena scratch(test_device(), "scratch");
  scratch.reserve(0);
  const Buffer memory(test_device(), static_cast<size_t>(count) * sizeof(T) + 1);
  const Tensor dst = memory.tensor({count}, DTypeOf<T>::value);
  random_fill(Context(stream, scratch), {.dst = dst, .distribution = distribution, .scale = scale, .key = key});
  stream.synchronize();
  return host_values<T>(dst);
}

/// Lengths that end within a counter, within a task and within a block.
const int64_t kLengths[] = {0, 1, 2, 3, 5, 1023, (1 << 16) + 7, 3 * (1 << 16)};

TEST(RandomFill, DrawsTheNumbersOfThePhiloxSequence) {
  for (const int64_t count : kLengths) {
    const std::vector<float> normal = filled<float>(count, Distribution::kNormal, 0.5f, 7);
    const std::vector<float> uniform = filled<float>(count, Distribution::kUniform, 0.5f, 7);
    PhiloxSequence normals(7), uniforms(7);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      // Each float64 function has an error of at most 2 ulp on any device, so the float32 results are equal or
      // adjacent: 2^-23 relative.
      const float expected = 0.5f * normals.normal();
      ASSERT_NEAR(normal[i], expected, std::abs(expected) * 0x1p-23f) << i << " of " << count;
      ASSERT_EQ(uniform[i], 0.5f * (2 * uniforms.uniform() - 1)) << i << " of " << count;
    }
  }
}

TEST(RandomFill, RoundsToBFloat16Once) {
  constexpr int64_t kCount = 10001;
  const std::vector<float> single = filled<float>(kCount, Distribution::kNormal, 0.02f, 3);
  const std::vector<BFloat16> half = filled<BFloat16>(kCount, Distribution::kNormal, 0.02f, 3);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(half[i].bits, BFloat16(single[i]).bits) << i;
}

TEST(RandomFill, HasTheMomentsThatAreAskedFor) {
  constexpr int64_t kCount = 1 << 20;
  const auto moments = [](const std::vector<float>& values) {
    double mean = 0, square = 0;
    for (const float v : values) mean += v, square += static_cast<double>(v) * v;
    return std::pair(mean / kCount, square / kCount);
  };
  // Six standard errors: of the mean σ / sqrt(n), of the second moment of a normal distribution σ² sqrt(2 / n).
  const auto [mean, square] = moments(filled<float>(kCount, Distribution::kNormal, 2.0f, 11));
  EXPECT_NEAR(mean, 0, 6 * 2.0 / 1024);
  EXPECT_NEAR(square, 4, 6 * 4 * std::sqrt(2.0) / 1024);
  const auto [uniform_mean, uniform_square] = moments(filled<float>(kCount, Distribution::kUniform, 3.0f, 11));
  EXPECT_NEAR(uniform_mean, 0, 6 * std::sqrt(3.0) / 1024);
  EXPECT_NEAR(uniform_square, 3, 6 * std::sqrt(81.0 / 5 - 9) / 1024);
}

TEST(RandomFill, DependsOnTheKeyAndNotOnThreads) {
  const auto one = filled<float>(200003, Distribution::kNormal, 1.0f, 5, 1);
  EXPECT_EQ(one, filled<float>(200003, Distribution::kNormal, 1.0f, 5, 3));
  EXPECT_NE(one, filled<float>(200003, Distribution::kNormal, 1.0f, 6, 3));
}

}  // namespace
}  // namespace hone
