#include "weights/gguf_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/philox.h"

namespace hone {
namespace {

/// Bytes of a block that are put together by hand.
class Block {
 public:
  Block& half(float value) {
    const Float16 half(value);
    return byte(half.bits & 255).byte(half.bits >> 8);
  }
  Block& byte(int value) {
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  Block& word(uint32_t value) {
    for (int i = 0; i < 4; ++i) byte(static_cast<int>(value >> (8 * i) & 255));
    return *this;
  }
  std::vector<float> decoded(GgufType type) const {
    const GgufFormat& format = gguf_format(type);
    EXPECT_EQ(static_cast<int64_t>(bytes_.size()), format.bytes);
    std::vector<float> values(static_cast<size_t>(format.values));
    decode_gguf(type, bytes_.data(), format.values, values.data());
    return values;
  }

 private:
  std::vector<std::byte> bytes_;
};

// Each value of the blocks below is computed from the formula in the header, with numbers that are exact in float32.

TEST(GgufBlocks, Q4AndQ5HaveAScaleAndAMinimum) {
  Block q4_0, q4_1, q5_0, q5_1;
  q4_0.half(0.5f);
  q4_1.half(0.5f).half(-3.0f);
  // The fifth bit of values 0, 3, 6, …
  uint32_t high = 0;
  for (int i = 0; i < 32; i += 3) high |= uint32_t{1} << i;
  q5_0.half(0.25f).word(high);
  q5_1.half(0.25f).half(2.0f).word(high);
  const auto code = [](int i) { return (7 * i + 3) % 16; };
  for (int i = 0; i < 16; ++i) {
    const int byte = code(i) | code(i + 16) << 4;
    for (Block* block : {&q4_0, &q4_1, &q5_0, &q5_1}) block->byte(byte);
  }
  const auto v40 = q4_0.decoded(GgufType::kQ4_0), v41 = q4_1.decoded(GgufType::kQ4_1),
             v50 = q5_0.decoded(GgufType::kQ5_0), v51 = q5_1.decoded(GgufType::kQ5_1);
  for (int i = 0; i < 32; ++i) {
    const auto at = static_cast<size_t>(i);
    const int fifth = i % 3 == 0 ? 16 : 0;
    EXPECT_EQ(v40[at], 0.5f * static_cast<float>(code(i) - 8)) << i;
    EXPECT_EQ(v41[at], 0.5f * static_cast<float>(code(i)) - 3.0f) << i;
    EXPECT_EQ(v50[at], 0.25f * static_cast<float>((code(i) | fifth) - 16)) << i;
    EXPECT_EQ(v51[at], 0.25f * static_cast<float>(code(i) | fifth) + 2.0f) << i;
  }
}

TEST(GgufBlocks, Q8HasSignedBytes) {
  Block block;
  block.half(0.125f);
  for (int i = 0; i < 32; ++i) block.byte(static_cast<int8_t>(8 * i - 128));
  const auto values = block.decoded(GgufType::kQ8_0);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], 0.125f * static_cast<float>(8 * i - 128));
}

int scale_of(int run) { return (11 * run + 5) % 64; }
int minimum_of(int run) { return (13 * run + 40) % 64; }

/// The 12 bytes of Q4_K and Q5_K.
void put_scales(Block& block) {
  for (int j = 0; j < 4; ++j) block.byte(scale_of(j) | scale_of(j + 4) >> 4 << 6);
  for (int j = 0; j < 4; ++j) block.byte(minimum_of(j) | minimum_of(j + 4) >> 4 << 6);
  for (int j = 0; j < 4; ++j) block.byte((scale_of(j + 4) & 15) | (minimum_of(j + 4) & 15) << 4);
}

TEST(GgufBlocks, Q4KAndQ5KHaveScalesOfSixBits) {
  const auto code = [](int run, int i) { return (3 * run + 5 * i) % 16; };
  const auto fifth = [](int run, int i) { return (run + i) % 2; };
  Block q4, q5;
  for (Block* block : {&q4, &q5}) {
    block->half(0.5f).half(0.25f);
    put_scales(*block);
  }
  for (int i = 0; i < 32; ++i) {
    int byte = 0;
    for (int run = 0; run < 8; ++run) byte |= fifth(run, i) << run;
    q5.byte(byte);
  }
  for (int pair = 0; pair < 4; ++pair) {
    for (int i = 0; i < 32; ++i) {
      for (Block* block : {&q4, &q5}) block->byte(code(2 * pair, i) | code(2 * pair + 1, i) << 4);
    }
  }
  const auto v4 = q4.decoded(GgufType::kQ4_K), v5 = q5.decoded(GgufType::kQ5_K);
  for (int run = 0; run < 8; ++run) {
    for (int i = 0; i < 32; ++i) {
      const auto at = static_cast<size_t>(32 * run + i);
      const float scale = 0.5f * static_cast<float>(scale_of(run)), least = 0.25f * static_cast<float>(minimum_of(run));
      EXPECT_EQ(v4[at], scale * static_cast<float>(code(run, i)) - least) << run << ", " << i;
      EXPECT_EQ(v5[at], scale * static_cast<float>(code(run, i) + 16 * fifth(run, i)) - least) << run << ", " << i;
    }
  }
}

TEST(GgufBlocks, Q6KHasScalesOfSixteenValues) {
  const auto code = [](int i) { return (i * i + 7 * i) % 64; };
  std::array<int, 128> low{};
  std::array<int, 64> high{};
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, run = i % 128 / 32, at = i % 32;
    low[static_cast<size_t>(64 * half + 32 * (run % 2) + at)] |= (code(i) & 15) << (run < 2 ? 0 : 4);
    high[static_cast<size_t>(32 * half + at)] |= code(i) >> 4 << (2 * run);
  }
  Block block;
  for (const int byte : low) block.byte(byte);
  for (const int byte : high) block.byte(byte);
  for (int i = 0; i < 16; ++i) block.byte(static_cast<int8_t>(9 * i - 70));
  block.half(0.5f);
  const auto values = block.decoded(GgufType::kQ6_K);
  for (int i = 0; i < 256; ++i) {
    const float scale = 0.5f * static_cast<float>(9 * (i / 16) - 70);
    EXPECT_EQ(values[static_cast<size_t>(i)], scale * static_cast<float>(code(i) - 32)) << i;
  }
}

TEST(GgufBlocks, Mxfp4HasASharedExponent) {
  Block block;
  block.byte(128);  // 2^1
  for (int i = 0; i < 16; ++i) block.byte(i | (15 - i) << 4);
  const auto values = block.decoded(GgufType::kMXFP4);
  const std::array<float, 8> known = {0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 6.0f, 8.0f, 12.0f};
  for (int i = 0; i < 32; ++i) {
    const int q = i < 16 ? i : 31 - i;
    EXPECT_EQ(values[static_cast<size_t>(i)],
              q < 8 ? known[static_cast<size_t>(q)] : -known[static_cast<size_t>(q - 8)]);
  }
}

std::vector<float> random_values(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto words = philox(7, {static_cast<uint32_t>(i), 0, 0, 0});
    values.push_back(static_cast<float>(static_cast<int32_t>(words[0])) * 0x1p-31f);
  }
  return values;
}

TEST(GgufBlocks, EncodingRoundsToTheNearestCode) {
  const std::vector<float> values = random_values(320);
  for (const GgufType type : {GgufType::kF32, GgufType::kF16, GgufType::kBF16, GgufType::kQ8_0, GgufType::kQ4_0}) {
    const GgufFormat& format = gguf_format(type);
    std::vector<std::byte> bytes(values.size() / static_cast<size_t>(format.values) *
                                 static_cast<size_t>(format.bytes));
    ASSERT_TRUE(encode_gguf(type, values.data(), 320, bytes.data()));
    std::vector<float> back(values.size());
    decode_gguf(type, bytes.data(), 320, back.data());
    // Half a step of the largest magnitude 1: 1 / 254, 1 / 16 (and one at the end that has no code above it), 2^-12,
    // 2^-9.
    const float bound = type == GgufType::kQ8_0   ? 0.5f / 127 + 0x1p-10f
                        : type == GgufType::kQ4_0 ? 1.0f / 8
                        : type == GgufType::kF16  ? 0x1p-12f
                        : type == GgufType::kBF16 ? 0x1p-9f
                                                  : 0.0f;
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(back[i], values[i], bound) << format.name << ", " << i;
    std::vector<std::byte> again(bytes.size());
    ASSERT_TRUE(encode_gguf(type, back.data(), 320, again.data()));
    if (format.values == 1) {
      EXPECT_EQ(again, bytes) << format.name;
    }
  }
}

TEST(GgufBlocks, QuantisedBlocksAreThoseOfTheDefinition) {
  std::vector<float> values(32, 0.0f);
  values[3] = -12.7f, values[20] = 6.35f, values[31] = 0.05f;  // d = 0.1: codes -127, 64 (63.5 away from zero), 1 (0.5)
  std::array<std::byte, 34> q8;
  ASSERT_TRUE(encode_gguf(GgufType::kQ8_0, values.data(), 32, q8.data()));
  const auto code = [&](int i) { return std::to_integer<int8_t>(q8[static_cast<size_t>(2 + i)]); };
  EXPECT_EQ(code(3), -127);
  EXPECT_EQ(code(20), std::round(6.35f * (1.0f / (12.7f / 127.0f))));
  EXPECT_EQ(code(0), 0);
  std::array<std::byte, 18> q4;
  ASSERT_TRUE(encode_gguf(GgufType::kQ4_0, values.data(), 32, q4.data()));
  // d = -12.7 / -8: code 0 for the largest magnitude, 8 for zero, floor(6.35 / d + 8.5) = 12.
  EXPECT_EQ(std::to_integer<int>(q4[2 + 3]) & 15, 0);
  EXPECT_EQ(std::to_integer<int>(q4[2 + 4]) >> 4, 12);
  EXPECT_EQ(std::to_integer<int>(q4[2]) & 15, 8);
}

TEST(GgufBlocks, TinyAndLostNumbers) {
  std::vector<float> values(32, 1e-42f);  // 1 / d is not finite
  for (const GgufType type : {GgufType::kQ8_0, GgufType::kQ4_0}) {
    std::array<std::byte, 34> bytes{};
    ASSERT_TRUE(encode_gguf(type, values.data(), 32, bytes.data()));
    std::array<float, 32> back;
    decode_gguf(type, bytes.data(), 32, back.data());
    for (const float value : back) EXPECT_EQ(value, 0.0f);
  }
  for (const float lost : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    values[5] = lost;
    for (const GgufFormat& format : gguf_formats()) {
      std::array<std::byte, 128> bytes;
      if (format.file_type < 0) continue;
      EXPECT_FALSE(encode_gguf(format.type, values.data(), 32, bytes.data())) << format.name;
    }
  }
  values[5] = 1e6f;  // more than float16 holds
  std::array<std::byte, 128> bytes;
  EXPECT_FALSE(encode_gguf(GgufType::kF16, values.data(), 32, bytes.data()));
  EXPECT_TRUE(encode_gguf(GgufType::kBF16, values.data(), 32, bytes.data()));
  EXPECT_TRUE(encode_gguf(GgufType::kQ8_0, values.data(), 32, bytes.data()));
  values[5] = 1e7f;  // d is
  EXPECT_FALSE(encode_gguf(GgufType::kQ8_0, values.data(), 32, bytes.data()));
}

TEST(GgufBlocks, NamesOfTypes) {
  EXPECT_EQ(written_gguf_format("q8_0")->type, GgufType::kQ8_0);
  EXPECT_EQ(written_gguf_format("q4_k"), nullptr);
  EXPECT_EQ(written_gguf_format("Q8_0"), nullptr);
  EXPECT_EQ(find_gguf_format(10), nullptr);
  EXPECT_EQ(other_gguf_type(10), "Q2_K");
  EXPECT_EQ(other_gguf_type(1000), "");
}

}  // namespace
}  // namespace hone
