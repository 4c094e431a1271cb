#include "train/model_flops.h"
#include "core/thread_pool.h"

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

TEST(ModelFlops, AGpuIsKnownByTheWholeNameOfItsModel) {
  EXPECT_EQ(rate_of_gpu("NVIDIA H200")->bf16, 989.4);
  EXPECT_EQ(rate_of_gpu("NVIDIA H100 PCIe")->bf16, 756);
  EXPECT_EQ(rate_of_gpu("NVIDIA A100-SXM4-80GB")->bf16, 312);
  EXPECT_EQ(rate_of_gpu("NVIDIA A40")->bf16, 149.7);
  EXPECT_EQ(rate_of_gpu("NVIDIA L40S")->bf16, 362);
  EXPECT_EQ(rate_of_gpu("NVIDIA GeForce RTX 5090")->float32, 104.8);
  EXPECT_EQ(rate_of_gpu("NVIDIA H100 80GB HBM3")->bf16, 989.4);
  EXPECT_EQ(rate_of_gpu("NVIDIA GH200 144G HBM3e")->bf16, 989.4);
  EXPECT_EQ(rate_of_gpu("NVIDIA A100-PCIE-40GB")->bf16, 312);
  EXPECT_EQ(rate_of_gpu("NVIDIA A100 80GB PCIe")->bf16, 312);
  EXPECT_EQ(rate_of_gpu("NVIDIA H200 NVL")->bf16, 835.5);
  EXPECT_FALSE(rate_of_gpu("NVIDIA RTX A4000"));
  EXPECT_FALSE(rate_of_gpu("NVIDIA GeForce RTX 4090 Laptop GPU"));
  EXPECT_FALSE(rate_of_gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb"));
  EXPECT_FALSE(rate_of_gpu("NVIDIA A40-48Q"));
  EXPECT_FALSE(rate_of_gpu(""));
  EXPECT_FALSE(rate_of_gpu("NVIDIA GeForce RTX 3060"));
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
