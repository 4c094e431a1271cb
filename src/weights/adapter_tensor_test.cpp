#include "weights/adapter_tensor.h"

#include <gtest/gtest.h>

#include <numeric>

#include "params/parameter_store.h"

namespace hone {
namespace {

/// A parameter [2, 3, 4] with the values 0, 1, …
struct Counted {
  Counted() {
    parameter = &store.add({"p", {2, 3, 4}, ParameterKind::kLora, 0, {}}, DType::kF32);
    store.allocate(Device{});
    std::iota(values(), values() + 24, 0.0f);
  }
  float* values() const { return parameter->value().as<float>(); }
  std::vector<float> gathered(const AdapterTensor& tensor) {
    const std::span<const float> made = gather(
        tensor, [](const Parameter& p) { return p.value().as<float>(); }, scratch);
    return {made.begin(), made.end()};
  }

  ParameterStore store;
  Parameter* parameter;
  std::vector<float> scratch;
};

TEST(AdapterTensor, ARunIsReadWhereItLies) {
  Counted counted;
  const AdapterTensor tensor{"k", {2, 4}, {AdapterBlock::run(*counted.parameter, 4, 8)}};
  EXPECT_TRUE(tensor.is_run());
  std::vector<float> scratch;
  EXPECT_EQ(gather(
                tensor, [](const Parameter& p) { return p.value().as<float>(); }, scratch)
                .data(),
            counted.values() + 4);
  scatter(tensor, std::vector<float>(8, -1.0f));
  EXPECT_EQ(std::count(counted.values(), counted.values() + 24, -1.0f), 8);
  EXPECT_EQ(counted.values()[4], -1.0f);
  EXPECT_EQ(counted.values()[12], 12.0f);
}

TEST(AdapterTensor, StridesTurnExpertsInnermostAndBack) {
  Counted counted;
  // [e, o, r] at (o · 4 + r) · 2 + e of the file, with outputs 2, 0, 1.
  AdapterTensor tensor{"k", {3, 8}, {}};
  for (const auto& [output, row] : {std::pair<int64_t, int64_t>{0, 1}, {1, 2}, {2, 0}}) {
    tensor.blocks.push_back({counted.parameter, {2, 1, 4}, {output * 4, {12, 4, 1}}, {row * 8, {1, 8, 2}}});
  }
  EXPECT_FALSE(tensor.is_run());
  const std::vector<float> expected = {8, 20, 9, 21, 10, 22, 11, 23, 0, 12, 1, 13,
                                       2, 14, 3, 15, 4,  16, 5,  17, 6, 18, 7, 19};
  EXPECT_EQ(counted.gathered(tensor), expected);
  std::fill(counted.values(), counted.values() + 24, 0.0f);
  scatter(tensor, expected);
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(counted.values()[i], static_cast<float>(i));
}

TEST(AdapterTensor, WhatNoBlockHoldsIsZeroAndFactorsMultiply) {
  Counted counted;
  counted.scratch.assign(40, 9.0f);
  // Two rows of three, of which the second and the third get 1 and 2 times a half.
  const AdapterTensor tensor{"k", {2, 3}, {{counted.parameter, {1, 1, 2}, {.begin = 1}, {.begin = 4}, 0.5f}}};
  EXPECT_EQ(counted.gathered(tensor), (std::vector<float>{0, 0, 0, 0, 0.5f, 1}));
  EXPECT_EQ(counted.gathered({"none", {2, 2}, {}}), std::vector<float>(4));
}

}  // namespace
}  // namespace hone
