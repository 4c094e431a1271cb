#include "formats/weight_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/base/philox.h"
#include "core/memory/buffer.h"
#include "formats/packed_weights.h"

namespace hone {
namespace {

constexpr int64_t kExperts = 2, kRows = 64, kColumns = 128;
const Shape kShape = {kExperts, kRows, kColumns};

std::vector<float> normal_values() {
  PhiloxSequence random(11);
  std::vector<float> values(static_cast<size_t>(kShape.numel()));
  for (float& value : values) value = random.normal();
  return values;
}

/// A weight in a format, in memory of its own.
struct Held {
  explicit Held(const WeightFormat& format, DType dtype = DType::kBF16) {
    const FormatTensor need = format.payload(kShape, dtype);
    payload = Buffer(Device{}, static_cast<size_t>(need.shape.numel()) * size_of(need.dtype));
    weight = {kShape, payload.tensor(need.shape, need.dtype)};
    if (const auto of_scales = format.scales(kShape)) {
      scales = Buffer(Device{}, static_cast<size_t>(of_scales->shape.numel()) * size_of(of_scales->dtype));
      weight.scales = scales.tensor(of_scales->shape, of_scales->dtype);
    }
  }
  Buffer payload, scales;
  EncodedWeight weight;
};

std::vector<float> read_all(const WeightFormat& format, const EncodedWeight& weight) {
  std::vector<float> values(static_cast<size_t>(kShape.numel()));
  format.read(weight, 0, kExperts * kRows, values.data());
  return values;
}

class AnyFormat : public testing::TestWithParam<const WeightFormat*> {};

TEST_P(AnyFormat, RowsComeBackRoundedByNoMoreThanTheFormat) {
  const WeightFormat& format = *GetParam();
  const std::vector<float> values = normal_values();
  const Held held(format);
  format.fill(held.weight, 0, kExperts * kRows, values.data());
  const std::vector<float> back = read_all(format, held.weight);
  for (int64_t row = 0; row < kExperts * kRows; ++row) {
    float largest = 0;
    for (int64_t k = 0; k < kColumns; ++k) largest = std::max(largest, std::fabs(values[row * kColumns + k]));
    for (int64_t k = 0; k < kColumns; ++k) {
      const float value = values[row * kColumns + k];
      // Half a step of 127 in the row's largest, or half an ulp of bfloat16; and the rounding of the scale.
      const float bound = &format == &int8_format() ? largest / 254 * 1.0001f : std::fabs(value) * 0x1p-8f;
      ASSERT_NEAR(back[row * kColumns + k], value, bound) << row << ", " << k;
    }
  }
}

TEST_P(AnyFormat, PiecesOfRowsMakeTheBytesOfTheWhole) {
  const WeightFormat& format = *GetParam();
  const std::vector<float> values = normal_values();
  const Held whole(format), pieces(format);
  format.fill(whole.weight, 0, kExperts * kRows, values.data());
  for (int64_t row = 0; row < kExperts * kRows; row += format.rows_together(kShape)) {
    format.fill(pieces.weight, row, format.rows_together(kShape), values.data() + row * kColumns);
  }
  EXPECT_EQ(read_all(format, pieces.weight), read_all(format, whole.weight));
  std::vector<float> some(3 * kColumns);
  format.read(whole.weight, kRows - 1, 3, some.data());
  const std::vector<float> all = read_all(format, whole.weight);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + (kRows - 1) * kColumns));
}

INSTANTIATE_TEST_SUITE_P(Formats, AnyFormat, testing::Values(&dense_format(), &tile_format(), &int8_format()),
                         [](const auto& test) { return std::string(test.param->name()); });

TEST(WeightFormat, SaysWhatMemoryItNeeds) {
  EXPECT_EQ(dense_format().payload(kShape, DType::kF32).dtype, DType::kF32);
  EXPECT_FALSE(dense_format().scales(kShape));
  EXPECT_EQ(int8_format().payload(kShape, DType::kBF16).dtype, DType::kI8);
  EXPECT_EQ(int8_format().scales(kShape)->shape, (Shape{kExperts, kRows}));
  EXPECT_EQ(tile_format().payload(kShape, DType::kBF16).dtype, DType::kBF16);
}

TEST(WeightFormat, OnlyTheDenseOneIsReadByEverybody) {
  const Device gpu{DeviceKind::kCuda, 0};
  EXPECT_TRUE(dense_format().dense() && dense_format().read_in_place(WeightProduct::kLinear, gpu));
  EXPECT_FALSE(int8_format().dense() || int8_format().read_in_place(WeightProduct::kLinear, Device{}));
  EXPECT_TRUE(int8_format().read_in_place(WeightProduct::kExperts, Device{}));
  EXPECT_FALSE(int8_format().read_in_place(WeightProduct::kExperts, gpu));
  EXPECT_FALSE(tile_format().dense() || tile_format().read_in_place(WeightProduct::kLinear, gpu));
}

TEST(WeightFormat, ElementsAndChunksCanMove) {
  EXPECT_TRUE(dense_format().movable());
  for (const PackedFormat* format : packed_formats()) EXPECT_TRUE(format->movable()) << format->name();
  EXPECT_FALSE(tile_format().movable() || int8_format().movable());
}

}  // namespace
}  // namespace hone
