#include "train/plan/model_flops.h"
#include "core/cpu/thread_pool.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

TEST(ModelFlops, DocumentsAttendToThemselvesOnly) {
  StepData data;
  data.micro_batches.resize(2);
  data.micro_batches[0].input_ids.resize(6);
  data.micro_batches[0].cu_seqlens = {0, 2, 6};
  data.micro_batches[0].rows = {0, 3, 4};
  data.micro_batches[1].input_ids.resize(3);
  data.micro_batches[1].cu_seqlens = {0, 3};
  const ForwardWork work = work_of(data);
  EXPECT_EQ(work.tokens, 9);
  EXPECT_EQ(work.supervised, 3);
  EXPECT_EQ(work.pairs(0), (4 + 16 + 9) / 2.0);
}

TEST(ModelFlops, ACpuIsMeasured) {
  ThreadPool pool(1);
  const std::optional<double> rate = peak_flops({}, DType::kF32, pool);
  ASSERT_TRUE(rate);
  EXPECT_GT(*rate, 1e7);
  EXPECT_LT(*rate, 1e13);
}

}  // namespace
}  // namespace hone
