#include "ops/gather_rows/gather_rows.h"

#include <gtest/gtest.h>

#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

TEST(GatherRows, PicksRowsInTheOrderAskedForWithRepeats) {
  ThreadPool pool(2);
  TestStream stream(pool);
  Arena scratch(test_device(), "scratch");
  scratch.reserve(1);
  const Buffer memory(test_device(), 4096);
  const Tensor x = memory.tensor({3, 2}, DType::kF32), rows = memory.tensor({4}, DType::kI32, 1024);
  const Tensor y = memory.tensor({4, 2}, DType::kF32, 2048);
  stream.upload<float>(x, {0, 1, 10, 11, 20, 21});
  stream.upload<int32_t>(rows, {2, 0, 2, 1});
  gather_rows(Context(stream, scratch), {.x = x, .rows = rows, .y = y});
  EXPECT_EQ(stream.download<float>(y), (std::vector<float>{20, 21, 0, 1, 20, 21, 10, 11}));
}

}  // namespace
}  // namespace hone
