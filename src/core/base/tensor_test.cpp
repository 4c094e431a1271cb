#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/philox.h"
#include "core/base/tensor.h"
#include "core/memory/arena.h"
#include "core/memory/buffer.h"

namespace hone {
namespace {

template <class T>
T from_bits(uint32_t bits) {
  T value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

template <class T>
void expect_every_value_survives() {
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const float wide = from_bits<T>(bits);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(T(wide)))) << bits;
    } else {
      EXPECT_EQ(T(wide).bits, bits);
    }
  }
}

TEST(BFloat16, EveryValueSurvivesFloat32) { expect_every_value_survives<BFloat16>(); }
TEST(Float16, EveryValueSurvivesFloat32SubnormalsIncluded) { expect_every_value_survives<Float16>(); }

/// Between two neighbours: below the middle rounds down, above it up, the middle to the even one.
template <class T>
void expect_rounds_to_nearest_even(uint32_t first, uint32_t last) {
  for (uint32_t bits = first; bits < last; ++bits) {
    const float low = from_bits<T>(bits), high = from_bits<T>(bits + 1);
    const float middle = low + (high - low) / 2;  // exact: float32 has at least 13 bits more
    const float below = std::nextafter(middle, low), above = std::nextafter(middle, high);
    EXPECT_EQ(T(middle).bits, bits + (bits & 1u)) << bits;
    EXPECT_EQ(T(below).bits, bits) << bits;
    EXPECT_EQ(T(above).bits, bits + 1) << bits;
    EXPECT_EQ(T(-middle).bits, (bits + (bits & 1u)) | 0x8000u) << bits;
  }
}

TEST(Float16, RoundsToNearestTiesToEven) { expect_rounds_to_nearest_even<Float16>(0, 0x7bff); }
TEST(BFloat16, RoundsToNearestTiesToEven) { expect_rounds_to_nearest_even<BFloat16>(0, 0x7f7f); }

TEST(Float16, HasTheValuesOfIeeeBinary16) {
  EXPECT_EQ(static_cast<float>(from_bits<Float16>(0x3c00)), 1.0f);
  EXPECT_EQ(static_cast<float>(from_bits<Float16>(0x0001)), 0x1p-24f);
  EXPECT_EQ(static_cast<float>(from_bits<Float16>(0x0400)), 0x1p-14f);
  EXPECT_EQ(static_cast<float>(from_bits<Float16>(0xfbff)), -65504.0f);
  EXPECT_EQ(Float16(-0.0f).bits, 0x8000);
}

TEST(Float16, OverflowsToInfinityFromTheMiddleOn) {
  EXPECT_EQ(Float16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Float16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(Float16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
}

TEST(Float16, UnderflowsToSignedZero) {
  EXPECT_EQ(Float16(0x1p-25f).bits, 0);  // the tie between 0 and 2^-24
  EXPECT_EQ(Float16(-0x1p-40f).bits, 0x8000);
}

TEST(BFloat16, NanStaysNanWhateverItsPayload) {
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(bits))))) << bits;
    EXPECT_TRUE(std::isnan(static_cast<float>(Float16(std::bit_cast<float>(bits))))) << bits;
  }
}

TEST(BFloat16, OverflowsToInfinityAndKeepsSigns) {
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_EQ(BFloat16(-0.0f).bits, 0x8000);
}

TEST(DType, SizesAndNamesAreThoseOfHuggingFace) {
  EXPECT_EQ(size_of(DType::kF64), 8u);
  EXPECT_EQ(size_of(DType::kI32), 4u);
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_EQ(size_of(DType::kBool), 1u);
  EXPECT_EQ(name_of(DType::kBF16), "bfloat16");
  EXPECT_EQ(name_of(DType::kF16), "float16");
}

TEST(Shape, CountsElementsAndPrints) {
  EXPECT_EQ((Shape{2, 3, 4}).numel(), 24);
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ((Shape{2, 0}).numel(), 0);
  EXPECT_EQ((Shape{2, 3, 4})[-1], 4);
  EXPECT_EQ((Shape{2, 3}).to_string(), "[2, 3]");
  EXPECT_EQ(Shape{}.to_string(), "[]");
}

TEST(Shape, EqualityMeansRankAndDimensions) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{2, 3, 1}));
  EXPECT_FALSE((Shape{2}) == (Shape{2, 0}));
}

TEST(Shape, NegativeAndFifthDimensionsAreCaught) {
  EXPECT_ANY_THROW((Shape{-1}));
  EXPECT_ANY_THROW((Shape{1, 1, 1, 1, 1}));
}

TEST(Tensor, RowsAreAViewOfTheSameMemory) {
  const Buffer memory(Device{}, 24 * sizeof(float));
  const Tensor tensor = memory.tensor({4, 3, 2}, DType::kF32);
  const Tensor rows = tensor.rows(1, 2);
  EXPECT_EQ(rows.shape, (Shape{2, 3, 2}));
  EXPECT_EQ(rows.data, tensor.data + 6 * sizeof(float));
  EXPECT_EQ(tensor.rows(4, 0).numel(), 0);
  EXPECT_ANY_THROW(tensor.rows(3, 2));
  EXPECT_ANY_THROW(tensor.rows(-1, 1));
}

TEST(Tensor, ReshapingKeepsTheElements) {
  const Buffer memory(Device{}, 12);
  const Tensor tensor = memory.tensor({2, 3}, DType::kBF16);
  EXPECT_EQ(tensor.bytes(), 12u);
  EXPECT_EQ(tensor.reshaped({6}).data, tensor.data);
  EXPECT_ANY_THROW(tensor.reshaped({5}));
}

TEST(Tensor, ReadingAnotherTypeIsCaught) {
  const Buffer memory(Device{}, 8);
  EXPECT_ANY_THROW(memory.tensor({2}, DType::kF32).as<int32_t>());
}

TEST(Buffer, IsZeroAndBoundsItsTensors) {
  const Buffer memory(Device{}, 8);
  EXPECT_EQ(memory.tensor({1}, DType::kI64).as<int64_t>()[0], 0);
  EXPECT_ANY_THROW(memory.tensor({3}, DType::kF32));
}

TEST(Arena, ADryPassMeasuresTheHighestStackAndNotTheSum) {
  Arena arena(Device{}, "test");
  ASSERT_TRUE(arena.dry());
  for (int i = 0; i < 3; ++i) {
    const ArenaScope scope(arena);
    arena.take({100}, DType::kF32);  // 400 bytes, two units of 256
    arena.take({1}, DType::kU8);     // one unit
  }
  EXPECT_EQ(arena.mark(), 0u);
  EXPECT_EQ(arena.high_water(), 3 * Arena::kAlignment);
}

TEST(Arena, WhatADryPassMeasuredIsExactlyEnough) {
  Arena arena(Device{}, "test");
  const Tensor dry = arena.take({64, 2}, DType::kF32);
  EXPECT_TRUE(dry.defined());
  arena.reserve(arena.high_water());
  EXPECT_FALSE(arena.dry());
  EXPECT_EQ(arena.mark(), 0u);
  const Tensor real = arena.take({64, 2}, DType::kF32);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(real.data) % Arena::kAlignment, 0u);
  real.as<float>()[127] = 1.0f;
}

TEST(Arena, AskingForMoreThanWasReservedIsCaught) {
  Arena arena(Device{}, "test");
  arena.reserve(Buffer::kAlignment);
  arena.take({static_cast<int64_t>(arena.capacity())}, DType::kU8);
  EXPECT_ANY_THROW(arena.take({1}, DType::kU8));
}

TEST(Arena, TensorsDoNotOverlapAndReleasedMemoryIsHandedOutAgain) {
  Arena arena(Device{}, "test");
  arena.reserve(1 << 16);
  const Tensor below = arena.take({3}, DType::kF32);
  const size_t mark = arena.mark();
  const Tensor first = arena.take({300}, DType::kBF16);
  EXPECT_GE(first.data, below.data + below.bytes());
  arena.release(mark);
  EXPECT_EQ(arena.take({5}, DType::kF64).data, first.data);
  EXPECT_ANY_THROW(arena.release(arena.mark() + 1));
}

TEST(Arena, GoesBackToDryAndForgetsItsMeasure) {
  Arena arena(Device{}, "test");
  arena.take({1000}, DType::kF32);
  arena.reserve(arena.high_water());
  arena.begin_dry();
  EXPECT_TRUE(arena.dry());
  EXPECT_EQ(arena.high_water(), 0u);
  EXPECT_EQ(arena.capacity(), 0u);
}

using Words = std::array<uint32_t, 4>;

// Known answers published with the algorithm (philox4x32, 10 rounds).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  constexpr uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(philox(UINT64_MAX, {kOnes, kOnes, kOnes, kOnes}),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox(0x299f31d0a4093822u, {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}),
            (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, UniformNumbersNeverReachOne) {
  EXPECT_EQ(to_uniform(0), 0.0f);
  EXPECT_LT(to_uniform(0xffffffffu), 1.0f);
  EXPECT_EQ(to_uniform(0x80000000u), 0.5f);
}

TEST(PhiloxSequence, GoesOnFromAPositionAsIfItHadNotStopped) {
  PhiloxSequence whole(7), rest(7, 2);
  for (int i = 0; i < 8; ++i) whole.next();  // two counters of four words
  for (int i = 0; i < 8; ++i) EXPECT_EQ(whole.next(), rest.next());
}

TEST(PhiloxSequence, DrawsBelowABoundAndReachesEveryValue) {
  PhiloxSequence random(1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(random.below(5));
  EXPECT_EQ(seen, (std::set<uint64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(random.below(1), 0u);
}

TEST(PhiloxSequence, NormalNumbersHaveMeanZeroAndVarianceOne) {
  PhiloxSequence random(3);
  constexpr int kCount = 40000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  // Standard errors 1/sqrt(n) = 0.005 and sqrt(2/n) = 0.007; the tolerance is five of them.
  EXPECT_NEAR(sum / kCount, 0.0, 0.025);
  EXPECT_NEAR(squares / kCount, 1.0, 0.036);
}

TEST(MixKey, DistinctUsesOfASeedGetDistinctKeys) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t use = 0; use < 10; ++use) keys.insert(mix_key(seed, use));
  }
  EXPECT_EQ(keys.size(), 100u);
}

}  // namespace
}  // namespace hone
