#include "train/device_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/cuda_device.h"
#include "core/error.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& name) {
  try {
    choose_device(name, "--device");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceChoice, AutoTakesAGpuWhereThereIsOne) {
  EXPECT_EQ(choose_device("cpu"), Device{});
  const Device expected = cuda::device_count() > 0 ? Device{DeviceKind::kCuda, 0} : Device{};
  EXPECT_EQ(choose_device("auto"), expected);
}

TEST(DeviceChoice, AGpuThatIsNotThereIsRefusedWithTheReason) {
  const std::string beyond = "cuda:" + std::to_string(std::max(cuda::device_count(), 1));
  if (cuda::device_count() == 0) {
    EXPECT_THAT(refusal("cuda"), HasSubstr("there is no GPU to run on: " + cuda::why_no_device()));
    EXPECT_THAT(refusal(beyond), HasSubstr("--device"));
  } else {
    EXPECT_EQ(refusal("cuda"), "");
    EXPECT_THAT(refusal(beyond), HasSubstr("the last one is cuda:"));
  }
}

TEST(DeviceChoice, OtherNamesAreRefused) {
  for (const char* name : {"", "cud", "cuda:", "cuda:x", "cuda:-1", "cuda:1234", "cpu:0", "CUDA "}) {
    EXPECT_THAT(refusal(name), HasSubstr("is not a device")) << name;
  }
  EXPECT_THAT(refusal("cud"), HasSubstr("Did you mean 'cuda'"));
}

}  // namespace
}  // namespace hone
