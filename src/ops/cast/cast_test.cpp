#include "ops/cast/cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

class Cast : public ::testing::Test {
 protected:
  Cast() : pool_(2), stream_(pool_), scratch_(test_device(), "scratch"), context_(stream_, scratch_) {
    scratch_.reserve(0);
  }

  ThreadPool pool_;
  TestStream stream_;
  Arena scratch_;
  Context context_;
};

TEST_F(Cast, RoundsToNearestEvenAndKeepsNaN) {
  for (int64_t n : {1, 7, 1024, 50021}) {
    std::vector<float> values(static_cast<size_t>(n));
    PhiloxSequence random(5);
    for (float& value : values) value = random.normal();
    values[0] = std::nanf("");
    values.back() = 1.00390625f;  // halfway between two bfloat16
    Buffer single(test_device(), values.size() * 4), half(test_device(), values.size() * 2),
        back(test_device(), values.size() * 4);
    const Tensor x = single.tensor({n}, DType::kF32), y = half.tensor({n}, DType::kBF16);
    const Tensor z = back.tensor({n}, DType::kF32);
    stream_.upload<float>(x, values);
    cast(context_, x, y);
    cast(context_, y, z);
    const std::vector<BFloat16> rounded = stream_.download<BFloat16>(y);
    const std::vector<float> widened = stream_.download<float>(z);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {  // any sign and payload
        ASSERT_TRUE(std::isnan(static_cast<float>(rounded[i])) && std::isnan(widened[i]));
        continue;
      }
      ASSERT_EQ(rounded[i].bits, BFloat16(values[i]).bits) << values[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(widened[i]), std::bit_cast<uint32_t>(static_cast<float>(rounded[i])));
    }
  }
}

TEST_F(Cast, BetweenEqualFormatsCopiesAllBits) {
  Buffer from(test_device(), 3000 * 2), to(test_device(), 3000 * 2);
  const Tensor x = from.tensor({3, 1000}, DType::kBF16), y = to.tensor({3000}, DType::kBF16);
  std::vector<BFloat16> values(3000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = BFloat16(static_cast<float>(i) - 1500.0f);
  stream_.upload<BFloat16>(x, values);
  cast(context_, x, y);
  const std::vector<BFloat16> copied = stream_.download<BFloat16>(y);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(copied[i].bits, values[i].bits);
}

TEST_F(Cast, FillZeroClearsOnlyItsTensor) {
  Buffer memory(test_device(), 4 * 4096);
  const Tensor all = memory.tensor({4096}, DType::kI32);
  stream_.upload<int32_t>(all, std::vector<int32_t>(4096, 7));
  fill_zero(context_, all.rows(1, 4094));
  const std::vector<int32_t> values = stream_.download<int32_t>(all);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], i == 0 || i == 4095 ? 7 : 0) << i;
}

TEST_F(Cast, CopiesIntegersToo) {
  const Buffer memory(test_device(), 2 * 4096 * sizeof(int32_t));
  const Tensor from = memory.tensor({4096}, DType::kI32), to = memory.tensor({4096}, DType::kI32, from.bytes());
  std::vector<int32_t> values(4096);
  std::iota(values.begin(), values.end(), -2048);
  stream_.upload<int32_t>(from, values);
  copy(context_, from, to);
  EXPECT_EQ(stream_.download<int32_t>(to), values);
}

}  // namespace
}  // namespace hone
