#include "formats/packed_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/memory/buffer.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {
namespace {

std::vector<float> normal(int64_t count, float deviation = 0.02f) {
  PhiloxSequence random(11);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = deviation * random.normal();
  return values;
}

/// A matrix packed to a chunk.
struct Packed {
  Packed(const PackedFormat& format, int64_t rows, int64_t columns, const std::vector<float>& values)
      : layout(format.layout(rows, columns)), memory(Device{}, static_cast<size_t>(layout.bytes)) {
    format.pack(layout, values.data(), memory.data());
  }
  std::vector<float> values() const {
    std::vector<float> back(static_cast<size_t>(layout.elements()));
    unpack(layout, memory.data(), 0, layout.elements(), back.data());
    return back;
  }
  PackedLayout layout;
  Buffer memory;
};

class PackedWeights : public testing::TestWithParam<const PackedFormat*> {};

INSTANTIATE_TEST_SUITE_P(Formats, PackedWeights, testing::ValuesIn(packed_formats()),
                         [](const auto& format) { return std::string(format.param->name()); });

/// Half of the widest gap between values of a block whose largest magnitude is 1.
float worst_error(const PackedFormat& format) {
  const std::string name(format.name());
  if (name == "nf4") return (1.0f - 0.6961929f) / 2 + 0.02f;  // and the error of the nested scale
  if (name == "nf4_float_scales") return (1.0f - 0.6961929f) / 2;
  if (name == "int8") return 0.5f / 127;
  if (name == "fp8") return 16.0f / 448;
  if (name == "mxfp4") return 0.25f;  // 8 - 6, of a block that reaches almost 8
  return 0.5f / 7 + 0.004f;           // and the rounding of the scale
}

TEST_P(PackedWeights, ComeBackWithinTheStepOfTheirBlock) {
  const PackedFormat& format = *GetParam();
  constexpr int64_t kRows = 130, kColumns = 256;
  const std::vector<float> values = normal(kRows * kColumns);
  const Packed packed(format, kRows, kColumns, values);
  std::vector<float> largest(static_cast<size_t>(kRows * kColumns));  // the largest of each block, at its number
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    float& most = largest[static_cast<size_t>(packed.layout.block_of(i))];
    most = std::max(most, std::fabs(values[static_cast<size_t>(i)]));
  }
  const std::vector<float> back = packed.values();
  double error = 0, all = 0;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const auto at = static_cast<size_t>(i);
    const float bound = worst_error(format) * largest[static_cast<size_t>(packed.layout.block_of(i))];
    ASSERT_NEAR(back[at], values[at], bound * 1.0001f) << i;
    error += std::pow(double{back[at]} - values[at], 2);
    all += std::pow(double{values[at]}, 2);
  }
  EXPECT_LT(std::sqrt(error / all), packed.layout.bytes > kRows * kColumns ? 0.03 : 0.15);
}

TEST_P(PackedWeights, PackingAgainChangesNothing) {
  const PackedFormat& format = *GetParam();
  if (format.name() == "nf4") GTEST_SKIP() << "the nested scales of nf4 are rounded each time";
  const Packed once(format, 24, 256, normal(24 * 256));
  const Packed twice(format, 24, 256, once.values());
  const std::vector<float> first = once.values(), second = twice.values();
  for (size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(second[i], first[i], std::fabs(first[i]) * 1e-6f) << i;
}

TEST_P(PackedWeights, ZerosStayZeros) {
  for (const float value : Packed(*GetParam(), 128, 256, std::vector<float>(128 * 256)).values())
    ASSERT_EQ(value, 0.0f);
}

TEST_P(PackedWeights, BlocksWithoutANumberShowIt) {
  for (const float strange : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = normal(128 * 256);
    values[300] = strange;
    const std::vector<float> back = Packed(*GetParam(), 128, 256, values).values();
    EXPECT_TRUE(std::isnan(back[300]));
  }
}

TEST_P(PackedWeights, AnyRunOfElementsIsThatOfTheWhole) {
  const PackedFormat& format = *GetParam();
  const int64_t rows = 9, columns = format.fits({9, 250}) ? 250 : 256;
  const Packed packed(format, rows, columns, normal(rows * columns));
  const std::vector<float> whole = packed.values();
  for (int64_t first : {0, 1, 63, 64, 249, 500}) {
    for (int64_t count : {1, 2, 65, 700}) {
      std::vector<float> run(static_cast<size_t>(count));
      unpack(packed.layout, packed.memory.data(), first, count, run.data());
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(run[static_cast<size_t>(i)], whole[static_cast<size_t>(first + i)]) << first << " + " << i;
      }
    }
  }
}

TEST_P(PackedWeights, AStackIsAChunkForEachMatrix) {
  const PackedFormat& format = *GetParam();
  const Shape shape = {3, 8, 256};
  const FormatTensor payload = format.payload(shape, DType::kBF16);
  EXPECT_EQ(payload.shape[0], 3);
  const Buffer memory(Device{}, static_cast<size_t>(payload.shape.numel()));
  const EncodedWeight weight{shape, memory.tensor(payload.shape, payload.dtype)};
  const std::vector<float> values = normal(shape.numel());
  format.fill(weight, 0, 24, values.data());
  std::vector<float> rows(static_cast<size_t>(10 * 256));
  format.read(weight, 7, 10, rows.data());  // the last of the first matrix, the second, the first of the third
  const std::vector<float> second(values.begin() + 8 * 256, values.begin() + 16 * 256);
  const std::vector<float> alone = Packed(format, 8, 256, second).values();
  for (size_t i = 0; i < alone.size(); ++i) ASSERT_EQ(rows[256 + i], alone[i]) << i;
}

// Against bitsandbytes: tools/make_nf4_fixture.py.

std::vector<uint8_t> bytes_of(const Json& text) {
  const auto hex = text.get<std::string>();
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

template <class T>
std::vector<T> numbers_of(const Json& text) {
  const std::vector<uint8_t> bytes = bytes_of(text);
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

Json nf4_fixture() { return read_json(HONE_SOURCE_DIR "/tests/fixtures/nf4.json"); }

TEST(Nf4Weights, ScaleMapIsThatOfBitsandbytes) {
  const auto map = numbers_of<float>(nf4_fixture()["scale_map"]);
  ASSERT_EQ(map.size(), kNf4ScaleValues.size());
  for (size_t i = 0; i < map.size(); ++i) EXPECT_EQ(map[i], kNf4ScaleValues[i]) << i;
}

TEST(Nf4Weights, CodesAreThoseOfBitsandbytes) {
  for (const Json& one : nf4_fixture()["cases"]) {
    std::vector<float> values;
    for (const BFloat16 value : numbers_of<BFloat16>(one["weight"])) values.push_back(value);
    const Packed packed(nf4_format(), one["shape"][0], one["shape"][1], values);
    const auto at = [&](int64_t offset, size_t count) {
      const auto* begin = reinterpret_cast<const uint8_t*>(packed.memory.data()) + offset;
      return std::vector<uint8_t>(begin, begin + count);
    };
    const auto codes = bytes_of(one["codes"]), scales = bytes_of(one["scales"]);
    EXPECT_EQ(at(0, codes.size()), codes) << one["shape"].dump();
    EXPECT_EQ(at(packed.layout.scales, scales.size()), scales) << one["shape"].dump();
    // torch adds up in another order: the mean, and what is left of it, may differ in the last place.
    const auto nested = numbers_of<float>(one["nested"]);
    for (size_t i = 0; i < nested.size(); ++i) {
      float ours = 0;
      std::memcpy(&ours, packed.memory.data() + packed.layout.nested + 4 * i, 4);
      EXPECT_NEAR(ours, nested[i], 1e-7f) << one["shape"].dump();
    }
  }
}

TEST(Nf4Weights, ValuesOfTheirStateAreThoseOfBitsandbytes) {
  for (const Json& one : nf4_fixture()["cases"]) {
    const PackedLayout layout = nf4_format().layout(one["shape"][0], one["shape"][1]);
    const Buffer memory(Device{}, static_cast<size_t>(layout.bytes));
    const auto place = [&](const char* part, int64_t offset) {
      const std::vector<uint8_t> bytes = bytes_of(one[part]);
      std::memcpy(memory.data() + offset, bytes.data(), bytes.size());
    };
    place("codes", 0);
    place("scales", layout.scales);
    place("nested", layout.nested);
    place("mean", layout.mean);
    const auto expected = numbers_of<BFloat16>(one["dequantised"]);
    std::vector<float> values(expected.size());
    unpack(layout, memory.data(), 0, layout.elements(), values.data());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(BFloat16(values[i]).bits, expected[i].bits) << i;
  }
}

/// A file's block may have no code of the largest exponent: its scale and its codes change then, its values do not.
TEST(Mxfp4Weights, PackingValuesOfAnyScaleLosesNothing) {
  const PackedLayout layout = mxfp4_format().layout(1, kMxfp4Block);
  PhiloxSequence random(5);
  for (int scale = 3; scale < 253; ++scale) {
    for (const int most : {16, 7, 6, 5, 4, 3, 2, 1}) {  // codes below it, of either sign
      std::vector<float> values;
      for (int64_t i = 0; i < kMxfp4Block; ++i) {
        const auto code = static_cast<size_t>(random.uniform() * static_cast<float>(std::min(most, 8)));
        values.push_back(kE2m1Values[code + (i % 2 == 0 ? 8 : 0)] * e8m0_value(static_cast<uint32_t>(scale)));
      }
      const std::vector<float> back = Packed(mxfp4_format(), 1, kMxfp4Block, values).values();
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(values[i])) << scale << " " << most;
      }
    }
  }
  EXPECT_EQ(layout.elements(), kMxfp4Block);
}

TEST(Fp8Weights, CodesAreTheNearest) {
  std::vector<float> values(128 * 128, 0.0f);
  values[0] = 448.0f;  // the scale is 1
  PhiloxSequence random(3);
  for (size_t i = 1; i < values.size(); ++i) values[i] = std::exp2(8.0f * random.uniform() - 4.0f) * random.normal();
  const std::vector<float> back = Packed(fp8_format(), 128, 128, values).values();
  std::vector<float> numbers;
  for (uint32_t code = 0; code < 256; ++code) {
    if (!std::isnan(e4m3_value(code))) numbers.push_back(e4m3_value(code));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    float nearest = numbers[0];
    for (const float n : numbers) nearest = std::fabs(n - values[i]) < std::fabs(nearest - values[i]) ? n : nearest;
    ASSERT_EQ(std::fabs(back[i] - values[i]), std::fabs(nearest - values[i])) << values[i];
  }
}

}  // namespace
}  // namespace hone
