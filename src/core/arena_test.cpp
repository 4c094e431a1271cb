#include "core/arena.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

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

}  // namespace
}  // namespace hone
