#include "kernels/cuda/grouped_gemm/grouped_testing.h"

#if HONE_CUDA
#include "ops/moe_experts/cuda/rank_products_cuda.h"

namespace hone {
namespace {

using testing::expect_within;
using testing::rounding;
using testing::sum_error;
using testing::TestTensor;
using Matrix = testing::GroupedMatrix;
using Rows = testing::GroupedRows;
using Sum = testing::GroupedSum;

constexpr DType kType = DType::kBF16;

struct Sizes {
  std::vector<int64_t> groups;  // rows of each group
  int64_t n;
  std::vector<int64_t> ranks;
};

/// Rows, the slices of J, and masks of random bits.
struct Arrangement {
  Rows rows;
  int64_t groups, columns = 0;
  std::vector<cuda::RankSlice> slices;
  std::vector<std::vector<uint8_t>> bits;
  std::vector<TestTensor<uint8_t>> masks;

  Arrangement(const Sizes& s, bool masked) : rows(s.groups), groups(static_cast<int64_t>(s.groups.size())) {
    const int64_t stride = cuda::mask_stride(s.n);
    PhiloxSequence random(7);
    masks.reserve(s.ranks.size());
    for (int64_t rank : s.ranks) {
      slices.push_back({columns, rank});
      columns += (rank + 7) / 8 * 8;
      bits.emplace_back(static_cast<size_t>(rows.count * stride));
      for (uint8_t& byte : bits.back()) byte = masked ? static_cast<uint8_t>(random.next()) : 0xFF;
      masks.emplace_back(bits.back(), Shape{rows.count, stride});
      if (masked) slices.back().mask = masks.back();
    }
  }
  /// The slice of column j, by its unit of 8 columns.
  size_t slice_of(int64_t j) const {
    size_t i = slices.size() - 1;
    while (slices[i].begin > j) --i;
    return i;
  }
  bool keeps(size_t slice, int64_t row, int64_t feature) const {
    const int64_t stride = static_cast<int64_t>(bits[slice].size()) / rows.count;
    return bits[slice][static_cast<size_t>(row * stride + feature / 8)] >> (feature % 8) & 1;
  }
};

std::vector<Sizes> all_sizes() {
  return {{testing::kTiny, 8, {1}},
          {testing::kTiny, 16, {8}},
          {testing::kUneven, 136, {16, 16}},
          {testing::kUneven, 264, {4, 20}},
          {{0, 300, 0}, 520, {5, 3, 7}},
          {testing::kUneven, 128, {64}},
          {testing::kUneven, 32, {8, 8, 8, 8}},
          {{0, 0}, 16, {8}}};
}

class RankProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::test_device().kind != DeviceKind::kCuda) GTEST_SKIP() << "products of a GPU";
  }

  /// Calls check(sizes, masked, gathers) for all combinations.
  template <class Check>
  static void for_all(Check check) {
    for (const Sizes& s : all_sizes()) {
      for (bool masked : {false, true}) {
        for (bool gathers : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << s.groups.size() << " groups, N " << s.n << ", first rank " << s.ranks[0] << " of "
                       << s.ranks.size() << (masked ? " masked" : "") << (gathers ? " gathered" : ""));
          check(s, masked, gathers);
        }
      }
    }
  }
};

TEST_F(RankProducts, ProjectRowsOnTheRanksOfEachAdapter) {
  for_all([](const Sizes& s, bool masked, bool gathers) {
    const Arrangement at(s, masked);
    const Rows& rows = at.rows;
    const Matrix a({gathers ? rows.tokens : rows.count, s.n}, 1, kType);
    const Matrix factor({at.groups, at.columns, s.n}, 2, kType, 0.3);
    Matrix c = Matrix::unwritten({rows.count, at.columns}, kType);
    testing::GroupedRun on;
    on.run<cuda::RankRowsArgs>(&cuda::rank_rows, {.groups = rows.groups(),
                                                  .a = a,
                                                  .a_rows = gathers ? rows.token_tensor.tensor() : Tensor{},
                                                  .factor = factor,
                                                  .slices = at.slices,
                                                  .c = c});
    c.read();
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t e = rows.group[static_cast<size_t>(r)], from = gathers ? rows.token[static_cast<size_t>(r)] : r;
      for (int64_t j = 0; j < at.columns; ++j) {
        Sum sum;
        for (int64_t k = 0; k < s.n; ++k) {
          if (at.keeps(at.slice_of(j), r, k)) sum.add(a[from * s.n + k], factor[(e * at.columns + j) * s.n + k]);
        }
        expect_within(c[r * at.columns + j], sum.value, sum_error(sum, s.n) + rounding(kType) * std::abs(sum.value),
                      "projection", r * at.columns + j);
      }
    }
  });
}

/// The gradients of all adapters; those with odd index are added to existing values.
void check_gradient(const Sizes& s, bool masked, bool gathers, bool ranks_last) {
  const Arrangement at(s, masked);
  const Rows& rows = at.rows;
  const Matrix thin({rows.count, at.columns}, 1, kType), b({gathers ? rows.tokens : rows.count, s.n}, 2, kType);
  std::vector<Matrix> outputs, before;
  std::vector<cuda::RankGradientDest> dests;
  for (size_t i = 0; i < s.ranks.size(); ++i) {
    const int64_t first = ranks_last && s.ranks.size() == 2 ? static_cast<int64_t>(i) * s.n / 2 : 0;
    const int64_t count = ranks_last && s.ranks.size() == 2 ? s.n / 2 : s.n;
    const Shape shape{at.groups, s.ranks[i], count};
    before.emplace_back(shape, 5 + i, DType::kF32);
    outputs.push_back(i % 2 == 1 ? Matrix(shape, 5 + i, DType::kF32) : Matrix::unwritten(shape, DType::kF32));
    dests.push_back({{outputs.back(), i % 2 == 1 ? 1.0f : 0.0f}, 0.5f, first, count});
  }
  testing::GroupedRun on;
  on.run<cuda::RankGradientArgs>(&cuda::rank_gradient, {.groups = rows.groups(),
                                                        .thin = thin,
                                                        .b = b,
                                                        .b_rows = gathers ? rows.token_tensor.tensor() : Tensor{},
                                                        .slices = at.slices,
                                                        .dests = dests,
                                                        .ranks_last = ranks_last});
  for (size_t i = 0; i < s.ranks.size(); ++i) {
    outputs[i].read();
    const int64_t rank = s.ranks[i], count = dests[i].count;
    for (int64_t e = 0, begin = 0; e < at.groups; begin += s.groups[static_cast<size_t>(e++)]) {
      const int64_t end = begin + s.groups[static_cast<size_t>(e)];
      for (int64_t j = 0; j < rank; ++j) {
        for (int64_t n = 0; n < count; ++n) {
          Sum sum;
          const int64_t column = dests[i].first + n;
          for (int64_t r = begin; r < end; ++r) {
            if (!at.keeps(i, r, column)) continue;
            sum.add(thin[r * at.columns + at.slices[i].begin + j],
                    b[(gathers ? rows.token[static_cast<size_t>(r)] : r) * s.n + column]);
          }
          const int64_t to = e * rank * count + (ranks_last ? n * rank + j : j * count + n);
          const double start = i % 2 == 1 ? before[i][to] : 0.0, want = 0.5 * sum.value + start;
          expect_within(outputs[i][to], want,
                        sum_error(sum, end - begin) + rounding(DType::kF32) * (std::abs(want) + std::abs(start)),
                        "gradient", to);
        }
      }
    }
  }
}

TEST_F(RankProducts, GiveTheGradientsOfBothFactors) {
  for_all([](const Sizes& s, bool masked, bool gathers) {
    for (bool ranks_last : {false, true}) check_gradient(s, masked, gathers, ranks_last);
  });
}

TEST_F(RankProducts, AddTheMaskedSumOfEachAdapter) {
  for (const Sizes& s : all_sizes()) {
    SCOPED_TRACE(::testing::Message() << s.groups.size() << " groups, N " << s.n << ", first rank " << s.ranks[0]);
    const Arrangement at(s, true);
    const Rows& rows = at.rows;
    const Matrix thin({rows.count, at.columns}, 1, kType), factor({at.groups, s.n, at.columns}, 2, kType, 0.3);
    const Matrix before({rows.count, s.n}, 3, kType);
    Matrix dst({rows.count, s.n}, 3, kType);
    testing::GroupedRun on;
    on.run<cuda::RankSumArgs>(
        &cuda::add_rank_sum,
        {.groups = rows.groups(), .thin = thin, .factor = factor, .slices = at.slices, .dst = dst});
    dst.read();
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t e = rows.group[static_cast<size_t>(r)];
      for (int64_t n = 0; n < s.n; ++n) {
        Sum sum;
        sum.add(before[r * s.n + n], 1.0);
        for (int64_t j = 0; j < at.columns; ++j) {
          if (!at.keeps(at.slice_of(j), r, n)) continue;
          sum.add(thin[r * at.columns + j], factor[(e * s.n + n) * at.columns + j]);
        }
        expect_within(dst[r * s.n + n], sum.value,
                      sum_error(sum, at.columns + 1) + rounding(kType) * std::abs(sum.value), "sum", r * s.n + n);
      }
    }
  }
}

}  // namespace
}  // namespace hone

#endif
