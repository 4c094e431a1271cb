#include "formats/int8_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/philox.h"
#include "formats/tile_order_testing.h"

namespace hone {
namespace {

/// A matrix of whole panels in 8 bits.
struct Quantised {
  Quantised(const std::vector<float>& rows, int64_t matrix_columns)
      : columns(matrix_columns),
        q(rows.size(), int8_t{-128}),
        scales(rows.size() / static_cast<size_t>(columns), std::nanf("")) {
    quantize_panels(rows.data(), static_cast<int64_t>(scales.size()) / kInt8PanelRows, columns, q.data(),
                    scales.data());
  }
  int8_t at(int64_t n, int64_t k) const { return q[static_cast<size_t>(int8_offset(n, k, columns))]; }
  float scale(int64_t n) const { return scales[static_cast<size_t>(n)]; }

  int64_t columns;
  std::vector<int8_t> q;
  std::vector<float> scales;
};

std::vector<float> normal_rows(int64_t rows, int64_t columns) {
  PhiloxSequence random(7);
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < values.size(); ++i) {
    // Rows of magnitudes from 2^-20 to 2^20.
    values[i] = std::ldexp(random.normal(), static_cast<int>(i / static_cast<size_t>(columns)) % 41 - 20);
  }
  return values;
}

TEST(Int8Weights, TilesHold16RowsInGroupsOfFourColumns) {
  constexpr int64_t kRows = 48, kColumns = 192;
  EXPECT_EQ(int8_offset(0, 3, kColumns), 3);
  EXPECT_EQ(int8_offset(1, 0, kColumns), 4);
  EXPECT_EQ(int8_offset(0, 4, kColumns), 64);
  EXPECT_EQ(int8_offset(15, 63, kColumns), 1023);
  EXPECT_EQ(int8_offset(0, 64, kColumns), 1024);
  EXPECT_EQ(int8_offset(16, 0, kColumns), 3 * 1024);
  testing::expect_every_place_is_taken_once(kRows, kColumns,
                                            [](int64_t n, int64_t k) { return int8_offset(n, k, kColumns); });
}

TEST(Int8Weights, FitWhereBothSidesAreMultiplesOf64) {
  EXPECT_TRUE(fits_int8({3, 64, 128}));
  EXPECT_FALSE(fits_int8({3, 96, 128}));
  EXPECT_FALSE(fits_int8({3, 64, 80}));
  EXPECT_FALSE(fits_int8({64, 64}));
}

TEST(Int8Weights, AreTheNearestMultiplesOfTheirRowsScale) {
  constexpr int64_t kRows = 48, kColumns = 192;
  const std::vector<float> rows = normal_rows(kRows, kColumns);
  const Quantised got(rows, kColumns);
  for (int64_t n = 0; n < kRows; ++n) {
    const float* row = rows.data() + n * kColumns;
    float largest = 0;
    for (int64_t k = 0; k < kColumns; ++k) largest = std::max(largest, std::fabs(row[k]));
    EXPECT_EQ(got.scale(n), largest / 127);
    for (int64_t k = 0; k < kColumns; ++k) {
      const double exact = static_cast<double>(row[k]) * 127 / static_cast<double>(largest);
      // Two roundings before that to a whole number: 127 / largest, and its product with the weight.
      EXPECT_NEAR(got.at(n, k), exact, 0.5 + 127 * 0x1p-23) << n << ", " << k;
      EXPECT_LE(std::abs(static_cast<int>(got.at(n, k))), 127);
    }
  }
}

TEST(Int8Weights, TiesGoToEvenNumbers) {
  std::vector<float> rows(16 * 64);
  rows[0] = 127;  // scale 1
  const std::vector<float> ties = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f};
  std::copy(ties.begin(), ties.end(), rows.begin() + 1);
  const Quantised got(rows, 64);
  const std::vector<int> want = {0, 2, 2, 0, -2, -2, 126, -126};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got.at(0, static_cast<int64_t>(i) + 1), want[i]) << ties[i];
}

TEST(Int8Weights, RowsOfZerosStayZerosAndLostNumbersShow) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> rows(16 * 64, 1.0f);
  std::fill_n(rows.begin(), 64, 0.0f);
  std::fill_n(rows.begin() + 64, 64, -1e-31f);
  rows[2 * 64 + 63] = std::nanf("");
  rows[3 * 64] = kInfinity;
  rows[4 * 64 + 7] = -kInfinity;
  std::fill_n(rows.begin() + 5 * 64, 64, 1e38f);
  const Quantised got(rows, 64);
  std::vector<float> back(rows.size());
  dequantize_rows(got.q.data(), got.scales.data(), 0, 16, 64, back.data());
  for (int64_t n = 0; n < 2; ++n) {
    EXPECT_EQ(got.scale(n), 0.0f);
    for (int64_t k = 0; k < 64; ++k) EXPECT_EQ(got.at(n, k), 0);
  }
  for (int64_t n = 2; n < 5; ++n) {
    EXPECT_TRUE(std::isnan(got.scale(n)));
    for (size_t k = 0; k < 64; ++k) EXPECT_TRUE(std::isnan(back[static_cast<size_t>(n) * 64 + k]));
  }
  for (size_t k = 0; k < 64; ++k) EXPECT_NEAR(back[5 * 64 + k] / 1e38f, 1, 1e-6);
  EXPECT_EQ(back[6 * 64], 127 * (1 / 127.0f));
}

TEST(Int8Weights, ComeBackWithinHalfAScale) {
  constexpr int64_t kRows = 80, kColumns = 128, kFirst = 19, kCount = 40;
  const std::vector<float> rows = normal_rows(kRows, kColumns);
  const Quantised got(rows, kColumns);
  std::vector<float> wide(kCount * kColumns);
  dequantize_rows(got.q.data(), got.scales.data(), kFirst, kCount, kColumns, wide.data());
  for (int64_t n = 0; n < kCount; ++n) {
    const float scale = got.scale(kFirst + n);
    for (int64_t k = 0; k < kColumns; ++k) {
      const auto i = static_cast<size_t>(n * kColumns + k);
      const float weight = rows[static_cast<size_t>((kFirst + n) * kColumns + k)];
      EXPECT_EQ(wide[i], scale * static_cast<float>(got.at(kFirst + n, k)));
      EXPECT_LE(std::fabs(wide[i] - weight), 0.50002f * scale);
    }
  }
}

/// Weights that were rounded once are not rounded further.
TEST(Int8Weights, AreTheirOwnRounding) {
  const std::vector<float> rows = normal_rows(16, 64);
  const Quantised once(rows, 64);
  std::vector<float> back(rows.size());
  dequantize_rows(once.q.data(), once.scales.data(), 0, 16, 64, back.data());
  EXPECT_EQ(Quantised(back, 64).q, once.q);
}

}  // namespace
}  // namespace hone
