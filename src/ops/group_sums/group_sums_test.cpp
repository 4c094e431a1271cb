#include "ops/group_sums/group_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::host_values;
using testing::test_device;
using testing::TestStream;
using testing::TestTensor;

struct GroupSums : ::testing::Test {
  ThreadPool pool{2};
  TestStream stream{pool};
  Arena arena{test_device(), "scratch"};
  Context context{stream, arena};

  GroupSums() { arena.reserve(1); }
};

TEST_F(GroupSums, AddsUpEachGroupOnWhatIsThere) {
  PhiloxSequence random(3);
  for (const int64_t count : {1, 2, 31, 511, 513, 4099}) {
    for (const int64_t groups : {1, 2, 7}) {
      SCOPED_TRACE(::testing::Message() << count << " of " << groups);
      std::vector<float> values, weights;
      std::vector<int32_t> group;
      std::vector<double> want, magnitude(static_cast<size_t>(2 * groups), 0.0);
      for (int64_t g = 0; g < 2 * groups; ++g) want.push_back(static_cast<double>(g));
      const std::vector<double> before = want;
      for (int64_t i = 0; i < count; ++i) {
        values.push_back(random.normal());
        weights.push_back(i % 3 == 0 ? 0.25f : 1.0f);
        group.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(groups > 1 ? groups - 1 : 1))));
        const auto at = static_cast<size_t>(2 * group.back());
        const double weighted = static_cast<double>(weights.back()) * static_cast<double>(values.back());
        want[at] += weighted;
        want[at + 1] += static_cast<double>(weights.back());
        magnitude[at] += std::abs(weighted);
      }
      const TestTensor<float> v(values, {count}), w(weights, {count});
      const TestTensor<int32_t> g(group, {count});
      const TestTensor<double> sums(before, {groups, 2});
      for (int pass = 0; pass < 2; ++pass) {
        group_sums(context, {.values = v, .weights = w, .groups = g, .sums = sums});
        stream.synchronize();
        const std::vector<double> got = host_values<double>(sums);
        for (size_t i = 0; i < got.size(); ++i) {
          const double expected = before[i] + (pass + 1) * (want[i] - before[i]);
          // Sums of float64 in another order.
          EXPECT_NEAR(got[i], expected,
                      1e-14 * (std::abs(expected) + 4 * magnitude[i / 2 * 2] + static_cast<double>(count)))
              << "sum " << i << " after pass " << pass;
        }
      }
    }
  }
}

TEST_F(GroupSums, WhatHasNoWeightIsNotLookedAt) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TestTensor<float> values({2, nan, 3, nan}, {4}), weights({0.5f, 0, 1, 0}, {4});
  const TestTensor<int32_t> groups({1, 1, 0, 0}, {4});
  const TestTensor<double> sums({0, 0, 0, 0}, {2, 2});
  group_sums(context, {.values = values, .weights = weights, .groups = groups, .sums = sums});
  stream.synchronize();
  EXPECT_EQ(host_values<double>(sums), (std::vector<double>{3, 1, 1, 0.5}));
}

}  // namespace
}  // namespace hone
