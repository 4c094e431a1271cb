#include "ops/kept_rows/kept_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;
using testing::TestTensor;

class KeptRows : public ::testing::Test {
 protected:
  KeptRows() : pool_(2), stream_(pool_), scratch_(test_device(), "scratch"), context_(stream_, scratch_) {
    scratch_.reserve(size_t{8} << 20);
  }

  /// What comes back of [rows, k] values.
  template <class T>
  std::vector<T> round_trip(const std::vector<T>& values, int64_t rows, int64_t k) {
    const TestTensor<T> x(values, {rows, k});
    ArenaScope scope(scratch_);
    const ValueFormat& format = fp8_value_format();
    const Tensor packed = scope.take({format.bytes({rows, k})}, DType::kU8);
    const Tensor back = scope.take({rows, k}, DTypeOf<T>::value);
    format.pack(context_, x, packed);
    format.unpack(context_, packed, back);
    return stream_.download<T>(back);
  }

  /// Normal values, some of which are a thousand times as large.
  template <class T>
  static std::vector<T> random(int64_t rows, int64_t k) {
    PhiloxSequence sequence(7);
    std::vector<T> values;
    for (int64_t i = 0; i < rows * k; ++i) values.emplace_back(sequence.normal() * (i % 97 == 5 ? 1000.0f : 1.0f));
    return values;
  }

  template <class T>
  void expect_rounded(int64_t rows, int64_t k) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << k << " of " << sizeof(T) << " bytes");
    const std::vector<T> values = random<T>(rows, k), back = round_trip(values, rows, k);
    // The code's half step; roundings of the scale, its inverse and two products in float32; that of the result.
    constexpr float kFloat = 4 * 0x1p-24f, kResult = sizeof(T) == 2 ? 0x1p-8f : 0x1p-24f;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t at = 0; at < k; at += kFp8Block) {
        const int64_t end = std::min(at + kFp8Block, k);
        float largest = 0;
        const auto x = [&](int64_t i) { return static_cast<float>(values[static_cast<size_t>(row * k + i)]); };
        for (int64_t i = at; i < end; ++i) largest = std::max(largest, std::fabs(x(i)));
        const Fp8Scale scale = fp8_scale(std::bit_cast<uint32_t>(largest), Fp8Code::kE4m3);
        for (int64_t i = at; i < end; ++i) {
          const auto got = static_cast<float>(back[static_cast<size_t>(row * k + i)]);
          const float half_step = std::max(0x1p-4f * std::fabs(x(i)), 0x1p-10f * largest / 448.0f);
          ASSERT_LE(std::fabs(got - x(i)), half_step + (kFloat + kResult) * std::fabs(x(i))) << row << ", " << i;
          const T want(e4m3_value(e4m3_code(x(i) * scale.inverse)) * scale.scale);
          ASSERT_EQ(got, static_cast<float>(want)) << row << ", " << i;
        }
      }
    }
  }

  ThreadPool pool_;
  TestStream stream_;
  Arena scratch_;
  Context context_;
};

TEST_F(KeptRows, ComeBackWithinHalfAStepOfTheirCode) {
  for (const auto& [rows, k] : {std::array<int64_t, 2>{1, 16}, {1, 2048}, {7, 144}, {33, 2176}, {300, 128}}) {
    expect_rounded<BFloat16>(rows, k);
    expect_rounded<float>(rows, k);
  }
}

TEST_F(KeptRows, TakeAByteAnElementAndAScaleForEach128) {
  EXPECT_EQ(fp8_value_format().bytes({3, 2048}), 3 * (2048 + 16 * 4));
  EXPECT_EQ(fp8_value_format().bytes({5, 144}), 5 * (144 + 2 * 4));
  EXPECT_EQ(fp8_value_format().bytes({0, 2048}), 0);
  EXPECT_ANY_THROW(fp8_value_format().bytes({3, 24}));
}

TEST_F(KeptRows, OfZerosAreZeros) {
  std::vector<float> values(3 * 256, 0.0f);
  values[256 + 130] = -3.0f;  // row 1, the second group
  EXPECT_EQ(round_trip(values, 3, 256), values);
}

TEST_F(KeptRows, DoNotDependOnOtherRows) {
  const std::vector<BFloat16> values = random<BFloat16>(9, 272);
  const std::vector<BFloat16> together = round_trip(values, 9, 272);
  for (int64_t row = 0; row < 9; ++row) {
    const auto begin = values.begin() + row * 272;
    const std::vector<BFloat16> alone = round_trip(std::vector<BFloat16>(begin, begin + 272), 1, 272);
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(alone[i].bits, together[static_cast<size_t>(row) * 272 + i].bits) << row << ", " << i;
    }
  }
}

TEST_F(KeptRows, ThatAreNotFiniteComeBackAsNanInTheirGroup) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(2 * 256, 1.0f);
    values[300] = bad;  // row 1, the first group
    const std::vector<float> back = round_trip(values, 2, 256);
    for (size_t i = 0; i < back.size(); ++i) {
      if (i >= 256 && i < 384) {
        ASSERT_TRUE(std::isnan(back[i])) << i;
      } else {
        ASSERT_NEAR(back[i], 1.0f, 2 * 0x1p-24f) << i;
      }
    }
  }
}

}  // namespace
}  // namespace hone
