#include "core/tensor.h"

#include <gtest/gtest.h>

#include "core/buffer.h"

namespace hone {
namespace {

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

}  // namespace
}  // namespace hone
