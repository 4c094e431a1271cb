#include "params/file_order.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace hone {
namespace {

TEST(FileOrder, ATransposedFileHasInputsFirstAndOutputsInterleaved) {
  // gate rows 0, 1 and up rows 2, 3 of three inputs
  const std::vector<int> memory = {0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32};
  const Shape shape{4, 3};
  EXPECT_EQ(file_shape(FileOrder::kTransposedInterleaved, shape), (Shape{3, 4}));
  std::vector<int> file(12), again(12);
  const MatrixOrder order(FileOrder::kTransposedInterleaved, shape);
  order.to_file(memory.data(), file.data());
  EXPECT_EQ(file, (std::vector<int>{0, 20, 10, 30, 1, 21, 11, 31, 2, 22, 12, 32}));
  order.rows_from_file(file.data(), 0, 4, again.data());
  EXPECT_EQ(again, memory);

  MatrixOrder(FileOrder::kTransposed, shape).to_file(memory.data(), file.data());
  EXPECT_EQ(file, (std::vector<int>{0, 10, 20, 30, 1, 11, 21, 31, 2, 12, 22, 32}));
}

TEST(FileOrder, ABiasIsAColumnOfOutputs) {
  const std::vector<int> memory = {0, 10, 20, 30};
  const Shape shape{7, 4};
  EXPECT_EQ(file_shape(FileOrder::kInterleaved, shape), shape);
  const MatrixOrder order(FileOrder::kInterleaved, shape);
  EXPECT_EQ(order.numel(), 4);
  std::vector<int> file(4);
  order.to_file(memory.data(), file.data());
  EXPECT_EQ(file, (std::vector<int>{0, 20, 10, 30}));
}

TEST(FileOrder, RowsOfAnyRangeComeBackAcrossTiles) {
  for (const FileOrder order : {FileOrder::kTransposed, FileOrder::kTransposedInterleaved}) {
    const Shape shape{70, 45};
    std::vector<int> memory(static_cast<size_t>(shape.numel())), file(memory.size());
    std::iota(memory.begin(), memory.end(), 0);
    const MatrixOrder matrix(order, shape);
    matrix.to_file(memory.data(), file.data());
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {0, 70}, {33, 36}, {34, 70}}) {
      std::vector<int> rows(static_cast<size_t>((end - begin) * 45));
      matrix.rows_from_file(file.data(), begin, end, rows.data());
      EXPECT_TRUE(std::equal(rows.begin(), rows.end(), memory.begin() + begin * 45));
    }
  }
}

}  // namespace
}  // namespace hone
