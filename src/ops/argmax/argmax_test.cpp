#include "ops/argmax/argmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::TestStream;
using testing::TestTensor;

template <class T>
std::vector<int32_t> argmax_of(const std::vector<T>& x, int64_t rows) {
  ThreadPool pool(2);
  TestStream stream(pool);
  Arena scratch(testing::test_device(), "scratch");
  scratch.reserve(0);
  const TestTensor<T> input(x, {rows, static_cast<int64_t>(x.size()) / rows});
  const TestTensor<int32_t> ids(std::vector<int32_t>(static_cast<size_t>(rows), -7), {rows});
  argmax(Context(stream, scratch), {.x = input, .ids = ids});
  return stream.download<int32_t>(ids.tensor());
}

TEST(Argmax, FindsTheLargestWhereverItStands) {
  for (const int64_t columns : {1, 2, 31, 1024, 1025, 4099, 151936}) {
    for (const int64_t at : {int64_t{0}, columns / 2, columns - 1}) {
      std::vector<float> x(static_cast<size_t>(3 * columns));
      for (size_t i = 0; i < x.size(); ++i) x[i] = -1.0f - static_cast<float>(i * 7919 % 1000);
      x[static_cast<size_t>(columns + at)] = -0.5f;  // in the second row
      EXPECT_EQ(argmax_of(x, 3)[1], at) << columns;
      EXPECT_EQ(argmax_of(std::vector<BFloat16>(x.begin(), x.end()), 3)[1], at) << columns;
    }
  }
}

TEST(Argmax, OfEqualOnesTheLowestIndexCounts) {
  std::vector<float> x(5000, -2.0f);
  x[77] = x[78] = x[1101] = x[4999] = 3.0f;
  EXPECT_EQ(argmax_of(x, 1), (std::vector<int32_t>{77}));
  EXPECT_EQ(argmax_of(std::vector<float>(5000, 0.0f), 1), (std::vector<int32_t>{0}));
}

TEST(Argmax, ARowThatIsNotFiniteHasNone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> x(4 * 40, 1.0f);
  x[3] = std::nanf("");                                          // row 0
  x[40 + 39] = kInfinity;                                        // row 1
  std::fill(x.begin() + 80, x.begin() + 120, -kInfinity);        // row 2
  std::fill(x.begin() + 120, x.begin() + 120 + 39, -kInfinity);  // row 3: all but the last
  EXPECT_EQ(argmax_of(x, 4), (std::vector<int32_t>{-1, -1, -1, 39}));
}

}  // namespace
}  // namespace hone
