#include <cmath>

#include "ops/moe_experts/moe_experts_testing.h"

namespace hone {
namespace {

using testing::MoeOptions;
using testing::MoeSizes;
using testing::OpResult;
using testing::Values;

double relative_distance(const Values& a, const Values& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

OpResult run(const MoeSizes& sizes, Fp8Recipe fp8) {
  const MoeOptions options{.base_format = &fp8_matrix_format(), .fp8 = fp8};
  return run_op(moe_case(sizes, options), {.dtype = DType::kBF16});
}

/// The weights are the same numbers; activations and gradients are rounded to 3 bits of mantissa before products, which
/// moves a sum of many by some 3 % of its norm.
TEST(MoeExpertsFp8, IsNearTheProductsInBfloat16) {
  if (testing::test_device().kind != DeviceKind::kCuda) GTEST_SKIP() << "a GPU multiplies experts in 8-bit floats";
  for (const MoeSizes& sizes : {MoeSizes{300, 256, 128, 5, 2}, {67, 512, 384, 8, 4}}) {
    const OpResult got = run(sizes, Fp8Recipe::kRowwise), want = run(sizes, Fp8Recipe::kOff);
    const auto near = [](const Values& a, const Values& b, double bound, const char* what) {
      const double distance = relative_distance(a, b);
      EXPECT_LE(distance, bound) << what;
      EXPECT_GE(distance, 5e-3) << what << ": in bfloat16";
    };
    near(got.outputs[0], want.outputs[0], 0.07, "out");
    near(got.gradients[0], want.gradients[0], 0.09, "dx");
    near(got.gradients[1], want.gradients[1], 0.09, "gradient of the router's weights");
  }
}

/// Sizes that the kernel does not take: the codes are unpacked.
TEST(MoeExpertsFp8, OtherSizesMultiplyInBfloat16) {
  const MoeSizes sizes{40, 64, 48, 3, 2};
  EXPECT_EQ(run(sizes, Fp8Recipe::kRowwise).outputs, run(sizes, Fp8Recipe::kOff).outputs);
}

}  // namespace
}  // namespace hone
