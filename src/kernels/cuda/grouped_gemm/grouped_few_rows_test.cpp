#include "kernels/cuda/grouped_gemm/grouped_few_rows.h"

#include <cstring>

#include "kernels/cuda/grouped_gemm/grouped_testing.h"

#if HONE_CUDA
#include "kernels/cuda/tiers.h"

namespace hone {
namespace {

using namespace testing;

class GroupedFewRows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device().kind != DeviceKind::kCuda) GTEST_SKIP() << "products of a GPU";
    GroupedRun on;
    if (cuda::kernel_tiers(on.context).grouped_gemm == cuda::Tier::kGeneral) GTEST_SKIP() << "tensor cores";
  }
};

/// Borders of the tiles that read w together: 8, 16 and 32 rows; more rows read it again.
const std::vector<int64_t> kFewBorders = {0, 1, 2, 7, 8, 9, 0, 15, 16, 17, 31, 32, 33, 70, 0};

struct FewRowsCase {
  int64_t n, k;
  bool gathers, activates;
};

/// Products of groups whose first rows have the same tokens, however many follow.
class FewRowsProduct {
 public:
  explicit FewRowsProduct(const FewRowsCase& shape) : shape_(shape) {}

  /// c and the activation, by rows.
  std::vector<std::vector<double>> run(const std::vector<int64_t>& groups, bool checks) {
    const auto [n, k, gathers, activates] = shape_;
    const auto group_count = static_cast<int64_t>(groups.size());
    std::vector<int64_t> offsets = {0};
    std::vector<int32_t> token;
    std::vector<int64_t> group;
    for (int64_t e = 0; e < group_count; ++e) {
      const int64_t rows = groups[static_cast<size_t>(e)];
      offsets.push_back(offsets.back() + rows);
      for (int64_t r = 0; r < rows; ++r) {
        token.push_back(static_cast<int32_t>((e * 5 + r * 3) % kTokens));
        group.push_back(e);
      }
    }
    const auto rows = static_cast<int64_t>(token.size());
    const TestTensor<int64_t> device_offsets(offsets, {group_count + 1});
    const TestTensor<int32_t> device_token(token, {rows});
    const GroupedMatrix tokens({kTokens, k}, 1, DType::kBF16), w({group_count, n, k}, 2, DType::kBF16, 0.1);
    Values sorted;
    for (const int32_t t : token) {
      for (int64_t i = 0; i < k; ++i) sorted.push_back(tokens[t * k + i]);
    }
    const GroupedMatrix in_order({rows, k}, std::move(sorted), DType::kBF16);
    GroupedMatrix c = GroupedMatrix::unwritten({rows, n}, DType::kBF16);
    GroupedMatrix activation = GroupedMatrix::unwritten({rows, n / 2}, DType::kBF16);
    GroupedRun on;
    on.run(&cuda::grouped_few_rows, {.groups = {device_offsets, rows},
                                     .a = gathers ? tokens : in_order,
                                     .a_rows = gathers ? Tensor(device_token) : Tensor{},
                                     .w = w,
                                     .c = c,
                                     .activation = activates ? Tensor(activation) : Tensor{},
                                     .decode = true});
    c.read();
    activation.read();
    std::vector<std::vector<double>> result(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        result[static_cast<size_t>(r)].push_back(c[r * n + j]);
        if (!checks) continue;
        GroupedSum sum;
        for (int64_t i = 0; i < k; ++i) {
          sum.add(tokens[token[static_cast<size_t>(r)] * k + i], w[(group[static_cast<size_t>(r)] * n + j) * k + i]);
        }
        expect_within(c[r * n + j], sum.value, sum_error(sum, k) + rounding(DType::kBF16) * std::abs(sum.value), "c",
                      r * n + j);
      }
      for (int64_t j = 0; activates && j < n / 2; ++j) {
        const double got = activation[r * n / 2 + j], gate = c[r * n + j], up = c[r * n + n / 2 + j];
        result[static_cast<size_t>(r)].push_back(got);
        const double want = gate / (1 + std::exp(-gate)) * up;
        expect_within(got, want, (rounding(DType::kBF16) + 0x1p-18) * std::abs(want), "activation", r * n / 2 + j);
      }
    }
    return result;
  }

 private:
  static constexpr int64_t kTokens = 90;
  FewRowsCase shape_;
};

TEST_F(GroupedFewRows, MultipliesGroupsOfAnySize) {
  // Columns end within a CTA, k within a round of steps and within the first loads; rows of 4096 do not fit in shared
  // memory sixteen at a time.
  for (const FewRowsCase& shape :
       {FewRowsCase{176, 64, false, false}, FewRowsCase{160, 128, true, true}, FewRowsCase{272, 320, true, false},
        FewRowsCase{80, 832, true, true}, FewRowsCase{32, 4096, true, false}, FewRowsCase{32, 4096, false, true}}) {
    SCOPED_TRACE(shape.n * 10000 + shape.k);
    FewRowsProduct(shape).run(kFewBorders, true);
  }
}

TEST_F(GroupedFewRows, ARowDoesNotDependOnTheOthers) {
  for (const FewRowsCase& shape : {FewRowsCase{160, 768, true, true}, FewRowsCase{176, 2048, false, false}}) {
    FewRowsProduct product(shape);
    const auto all = product.run(kFewBorders, false);
    for (const int64_t most : {1, 5, 12, 20}) {
      std::vector<int64_t> groups = kFewBorders;
      for (int64_t& rows : groups) rows = std::min(rows, most);
      const auto some = product.run(groups, false);
      size_t row = 0, first = 0;
      for (size_t e = 0; e < groups.size(); ++e) {
        for (int64_t r = 0; r < groups[e]; ++r) EXPECT_EQ(some[row++], all[first + static_cast<size_t>(r)]);
        first += static_cast<size_t>(kFewBorders[e]);
      }
    }
  }
}

TEST_F(GroupedFewRows, IsChosenForFewRowsOfDecode) {
  const GroupedMatrix a({64, 128}, 1, DType::kBF16), w({4, 32, 128}, 2, DType::kBF16), c({64, 32}, 3, DType::kBF16);
  const TestTensor<int64_t> offsets({0, 1, 2, 3, 4}, {5});
  const GroupedRun on;
  const cuda::GroupedGemmArgs few{.groups = {offsets, 4 * cuda::kFewRows}, .a = a, .w = w, .c = c, .decode = true};
  EXPECT_TRUE(cuda::few_rows_can_run(on.context, few));
  cuda::GroupedGemmArgs other = few;
  other.groups.rows += 1;
  EXPECT_FALSE(cuda::few_rows_can_run(on.context, other));
  other = few;
  other.decode = false;
  EXPECT_FALSE(cuda::few_rows_can_run(on.context, other));
}

}  // namespace
}  // namespace hone
#endif
