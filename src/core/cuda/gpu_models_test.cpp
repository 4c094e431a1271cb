#include "core/cuda/gpu_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/base/error.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

TEST(GpuModels, AGpuIsKnownByTheWholeNameOfItsModel) {
  EXPECT_EQ(gpu_model_of("NVIDIA H200")->bf16_tflops, 989.4);
  EXPECT_EQ(gpu_model_of("NVIDIA H100 PCIe")->bf16_tflops, 756);
  EXPECT_EQ(gpu_model_of("NVIDIA A100-SXM4-80GB")->bf16_tflops, 312);
  EXPECT_EQ(gpu_model_of("NVIDIA A40")->bf16_tflops, 149.7);
  EXPECT_EQ(gpu_model_of("NVIDIA L40S")->bf16_tflops, 362);
  EXPECT_EQ(gpu_model_of("NVIDIA GeForce RTX 5090")->f32_tflops, 104.8);
  EXPECT_EQ(gpu_model_of("NVIDIA H100 80GB HBM3")->bf16_tflops, 989.4);
  EXPECT_EQ(gpu_model_of("NVIDIA GH200 144G HBM3e")->bf16_tflops, 989.4);
  EXPECT_EQ(gpu_model_of("NVIDIA A100-PCIE-40GB")->bf16_tflops, 312);
  EXPECT_EQ(gpu_model_of("NVIDIA A100 80GB PCIe")->bf16_tflops, 312);
  EXPECT_EQ(gpu_model_of("NVIDIA H200 NVL")->bf16_tflops, 835.5);
  EXPECT_FALSE(gpu_model_of("NVIDIA RTX A4000"));
  EXPECT_FALSE(gpu_model_of("NVIDIA GeForce RTX 4090 Laptop GPU"));
  EXPECT_FALSE(gpu_model_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb"));
  EXPECT_FALSE(gpu_model_of("NVIDIA A40-48Q"));
  EXPECT_FALSE(gpu_model_of(""));
  EXPECT_FALSE(gpu_model_of("NVIDIA GeForce RTX 3060"));
}

TEST(GpuModels, OptionsNameAModelAndItsMemory) {
  const GpuModel a100 = parse_gpu_model("a100-80gb", "--gpu"), rtx = parse_gpu_model("rtx-4090", "--gpu");
  EXPECT_EQ(a100.option(), "a100-80gb");
  EXPECT_EQ(a100.compute_capability, 80);
  EXPECT_EQ(a100.memory, int64_t{80} << 30);
  EXPECT_EQ(a100.shared_memory, size_t{163} << 10);
  EXPECT_EQ(rtx.name, "RTX 4090");
  EXPECT_EQ(rtx.shared_memory, size_t{99} << 10);
  EXPECT_EQ(parse_gpu_model("b200", "--gpu").compute_capability, 100);
  EXPECT_EQ(parse_gpu_model("l40s", "--gpu").compute_capability, 89);
  EXPECT_EQ(parse_gpu_model("h200", "--gpu").shared_memory, size_t{227} << 10);
}

TEST(GpuModels, EveryModelHasItsOwnOptionAndAllThatAPlanReads) {
  const std::vector<std::string> options = gpu_model_options();
  EXPECT_EQ(std::set<std::string>(options.begin(), options.end()).size(), options.size());
  for (const char* asked : {"a100-80gb", "rtx-4090", "rtx-5090", "l40s", "h100", "h200", "b200"}) {
    EXPECT_THAT(options, ::testing::Contains(asked));
  }
  for (const std::string& option : options) {
    const GpuModel gpu = parse_gpu_model(option, "--gpu");
    EXPECT_EQ(gpu.option(), option);
    EXPECT_GE(gpu.compute_capability, 80) << option << ": older ones are refused";
    EXPECT_GE(gpu.memory, int64_t{15} << 30) << option;
    EXPECT_GE(gpu.shared_memory, size_t{99} << 10) << option;
    EXPECT_GT(gpu.bf16_tflops, gpu.f32_tflops) << option;
    EXPECT_GT(gpu.memory_gbs, gpu.link_gbs) << option;
    EXPECT_GE(gpu.link_gbs, 32) << option;
  }
}

TEST(GpuModels, GpusWithoutBfloat16AreRefusedWithTheReason) {
  for (const char* option : {"v100", "v100-32gb", "t4", "rtx-2080-ti"}) {
    try {
      parse_gpu_model(option, "--gpu");
      ADD_FAILURE() << option;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string("'") + option + "' has no bfloat16 arithmetic"));
      EXPECT_THAT(error.what(), HasSubstr("rtx-4090"));
    }
  }
}

TEST(GpuModels, OtherNamesAreRefusedWithTheKnownOnes) {
  try {
    parse_gpu_model("rtx-4091", "--gpu");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'rtx-4091' is not a GPU that is known. Did you mean 'rtx-4090'"));
    EXPECT_THAT(error.what(), HasSubstr("a100-80gb"));
  }
}

}  // namespace
}  // namespace hone
