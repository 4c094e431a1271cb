#include "kernels/cuda/matmul/few_rows_matmul.h"

#include <cmath>

#include "kernels/cuda/grouped_gemm/grouped_testing.h"

#if HONE_CUDA
#include "kernels/cuda/tiers.h"

namespace hone {
namespace {

using namespace testing;

class FewRowsMatmul : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device().kind != DeviceKind::kCuda) GTEST_SKIP() << "products of a GPU";
    if (cuda::kernel_tiers(GroupedRun().context).grouped_gemm != cuda::Tier::kSm90) GTEST_SKIP() << "clusters";
  }
};

/// The products of the first `rows` of 64 rows with weights of these numbers of rows, by weights.
std::vector<Values> multiply(int64_t rows, int64_t k, const std::vector<int64_t>& widths, bool checks) {
  const GroupedMatrix all({cuda::kMostFewRows, k}, 1, DType::kBF16);
  std::vector<GroupedMatrix> weights, results;
  cuda::FewRowsMatmulArgs args{.a = Tensor(all).rows(0, rows), .b = {}, .c = {}};
  for (size_t i = 0; i < widths.size(); ++i) {
    weights.emplace_back(Shape{widths[i], k}, 2 + i, DType::kBF16, 0.1);
    results.push_back(GroupedMatrix::unwritten({rows, widths[i]}, DType::kBF16));
    args.b[i] = weights[i];
    args.c[i] = results[i];
  }
  GroupedRun on;
  EXPECT_TRUE(cuda::few_rows_matmul_can_run(on.context, args));
  on.run(&cuda::few_rows_matmul, args);
  std::vector<Values> read;
  for (size_t i = 0; i < widths.size(); ++i) {
    results[i].read();
    Values& values = read.emplace_back();
    for (int64_t at = 0; at < rows * widths[i]; ++at) {
      values.push_back(results[i][at]);
      if (!checks) continue;
      GroupedSum sum;
      for (int64_t j = 0; j < k; ++j) sum.add(all[at / widths[i] * k + j], weights[i][at % widths[i] * k + j]);
      expect_within(values.back(), sum.value, sum_error(sum, k) + rounding(DType::kBF16) * std::abs(sum.value), "c",
                    at);
    }
  }
  return read;
}

TEST_F(FewRowsMatmul, MultipliesUpToThreeWeights) {
  // Slices of k of equal and of unequal numbers of steps; rows that end within a tile; both depths of the ring.
  multiply(64, 512, {256, 128, 128}, true);
  multiply(61, 576, {128, 384}, true);
  multiply(33, 1088, {256}, true);
  multiply(17, 4096, {128, 128}, true);
  multiply(9, 960, {128}, true);
  multiply(8, 2048, {128}, true);
  multiply(1, 1536, {256, 128, 128}, true);
  multiply(64, 512, {4096, 512, 512}, true);
  multiply(3, 640, {4096, 512, 512}, true);
}

TEST_F(FewRowsMatmul, ARowDependsNeitherOnTheOthersNorOnTheOtherWeights) {
  constexpr int64_t kWidth = 256;
  const Values want = multiply(64, 2048, {kWidth, 128}, false)[0];
  for (const int64_t rows : {1, 2, 8, 9, 32, 33, 63}) {
    const Values first(want.begin(), want.begin() + rows * kWidth);
    EXPECT_EQ(multiply(rows, 2048, {kWidth}, false)[0], first) << rows;
    EXPECT_EQ(multiply(rows, 2048, {kWidth, 4096, 1024}, false)[0], first) << rows;
  }
}

TEST_F(FewRowsMatmul, IsChosenForFewRows) {
  const GroupedRun on;
  const auto can_run = [&](int64_t rows, int64_t k, int64_t n) {
    const GroupedMatrix a({rows, k}, 1, DType::kBF16), b({n, k}, 2, DType::kBF16), c({rows, n}, 3, DType::kBF16);
    return cuda::few_rows_matmul_can_run(on.context, {.a = a, .b = {b}, .c = {c}});
  };
  EXPECT_TRUE(can_run(64, 512, 128));
  EXPECT_FALSE(can_run(65, 512, 128));
  EXPECT_FALSE(can_run(64, 448, 128));
  EXPECT_FALSE(can_run(64, 544, 128));
  EXPECT_FALSE(can_run(64, 4160, 128));
  EXPECT_FALSE(can_run(64, 512, 192));
  EXPECT_FALSE(can_run(1, 512, 16512));
}

}  // namespace
}  // namespace hone
#endif
