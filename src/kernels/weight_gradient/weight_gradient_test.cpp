#include "kernels/weight_gradient/weight_gradient.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::host_values;
using testing::test_device;
using testing::TestStream;
using testing::TestStruct;

struct Fixture {
  explicit Fixture(int64_t count, int threads = 2, int64_t offset = 0)
      : pool(threads), stream(pool), scratch(test_device(), "scratch"), memory(test_device(), size_t(count + 8) * 8) {
    scratch.reserve(0);
    StepScalars values;
    values.seed = 11;
    scalars.write(values);
    src = memory.tensor({count}, DType::kF32, static_cast<size_t>(offset) * 4);
    dst = memory.tensor({count}, DType::kBF16, static_cast<size_t>((count + 8) / 4 * 16 + offset * 2));
  }
  void store(const std::vector<float>& values, float beta, uint64_t stream_id = 3) {
    stream.upload<float>(src, values);
    store_gradient(Context(stream, scratch), {src, {dst, beta}, {scalars.get(), stream_id}});
    stream.synchronize();
  }
  std::vector<BFloat16> result() const { return host_values<BFloat16>(dst); }

  ThreadPool pool;
  TestStream stream;
  Arena scratch;
  Buffer memory;
  TestStruct<StepScalars> scalars;
  Tensor src, dst;
};

std::vector<float> random_values(int64_t n, uint64_t key) {
  PhiloxSequence random(mix_key(33, key));
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = random.normal();
  return values;
}

TEST(WeightGradient, TheFirstIsRoundedToNearest) {
  for (int64_t count : {1, 3, 4, 4099, 40003}) {
    for (int64_t offset : {0, 1}) {
      Fixture fixture(count, 2, offset);
      const std::vector<float> values = random_values(count, 1);
      fixture.store(values, 0.0f);
      const std::vector<BFloat16> got = fixture.result();
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i].bits, BFloat16(values[i]).bits) << i;
    }
  }
}

TEST(WeightGradient, WhatIsAddedIsRoundedUpOrDown) {
  for (int64_t count : {1, 7, 40003}) {
    for (int64_t offset : {0, 1}) {
      Fixture fixture(count, 2, offset);
      const std::vector<float> first = random_values(count, 1), second = random_values(count, 2);
      fixture.store(first, 0.0f);
      fixture.store(second, 1.0f);
      const std::vector<BFloat16> got = fixture.result();
      for (size_t i = 0; i < got.size(); ++i) {
        const float sum = static_cast<float>(BFloat16(first[i])) + second[i];
        const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) >> 16);
        ASSERT_TRUE(got[i].bits == below || got[i].bits == below + 1) << i;
      }
    }
  }
}

/// 64 micro-batches that each add about a hundredth of the distance of two bfloat16, with the same key as in replays of
/// a graph: rounding to nearest loses them all.
TEST(WeightGradient, SmallAddendsAddUp) {
  constexpr int64_t kElements = 16384;
  constexpr double kDistance = 0x1p-7;
  Fixture fixture(kElements);
  fixture.store(std::vector<float>(kElements, 1.0f), 0.0f);
  double added = 0;
  for (int use = 1; use <= 64; ++use) {
    const auto addend = static_cast<float>(kDistance / 100 * (1 + 1e-3 * use));
    added += static_cast<double>(addend);
    fixture.store(std::vector<float>(kElements, addend), 1.0f);
  }
  double sum = 0;
  for (BFloat16 value : fixture.result()) sum += static_cast<double>(static_cast<float>(value));
  // The sum of 64 Bernoulli variables with probability 1/100, in units of the distance, has a deviation of 0.83, the
  // mean of all elements a 128th of that.
  EXPECT_NEAR(sum / kElements, 1.0 + added, 6 * 0.83 * kDistance / 128);
}

TEST(WeightGradient, EachUseHasItsOwnRandomNumbersWhateverTheThreads) {
  constexpr int64_t kElements = 30001;
  const std::vector<float> values = random_values(kElements, 4);
  const auto run = [&](int threads, uint64_t stream_id) {
    Fixture fixture(kElements, threads);
    fixture.store(values, 0.0f);
    fixture.store(random_values(kElements, 5), 1.0f, stream_id);
    std::vector<uint16_t> bits;
    for (BFloat16 value : fixture.result()) bits.push_back(value.bits);
    return bits;
  };
  EXPECT_EQ(run(1, 1), run(2, 1));
  EXPECT_NE(run(2, 1), run(2, 2));
}

TEST(NarrowGradient, StagesOnlyWhatTheOpCannotWrite) {
  Fixture fixture(8);
  const Context context(fixture.stream, fixture.scratch);
  struct Fixed : Weight {
    GradDest given;
    Shape s{8};
    const Shape& shape() const override { return s; }
    WeightView view() const override { return {}; }
    bool wants_grad() const override { return given.wanted(); }
    GradDest grad() override { return given; }
  };
  Fixed none, narrow, wide;
  narrow.given = {fixture.dst, 0.0f};
  wide.given = {fixture.src, 1.0f};
  EXPECT_FALSE(NarrowGradient(context, none).dest.wanted());
  EXPECT_EQ(NarrowGradient(context, narrow, true).dest.dst.data, fixture.dst.data);
  const NarrowGradient same(context, wide);
  EXPECT_EQ(same.dest.dst.data, fixture.src.data);
  EXPECT_EQ(same.dest.beta, 1.0f);
}

}  // namespace
}  // namespace hone
