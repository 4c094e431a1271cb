#include "kernels/cpu/gemm/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/cpu/isa_testing.h"
#include "core/cpu/thread_pool.h"

namespace hone {
namespace {

/// Sizes around the edges of vectors, panels, strips and blocks of k.
constexpr int64_t kSizes[] = {1, 2, 3, 7, 13, 16, 17, 31, 33, 47, 64, 97};

enum class Layout { kRowMajor, kColumnMajor, kStrided };

/// A matrix in memory, with its float32 values in dense order.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, DType dtype, Layout layout, std::mt19937& random, bool gather_rows = false,
         bool gather_cols = false)
      : rows_(rows), cols_(cols) {
    if (gather_rows) row_index_ = indices(rows, random);
    if (gather_cols) col_index_ = indices(cols, random);
    const int64_t stored_rows = gather_rows ? rows + 5 : rows, stored_cols = gather_cols ? cols + 5 : cols;
    constexpr int64_t kPadding = 3;  // makes the leading dimension odd
    view_.dtype = dtype;
    view_.row_stride = layout == Layout::kRowMajor ? stored_cols + kPadding : layout == Layout::kColumnMajor ? 1 : 2;
    view_.col_stride = layout == Layout::kRowMajor ? 1 : (stored_rows + kPadding) * view_.row_stride;
    // Allocates exactly the reachable elements, so that AddressSanitizer detects reads past the end.
    const int64_t size = (stored_rows - 1) * view_.row_stride + (stored_cols - 1) * view_.col_stride + 1;
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < size; ++i) {
      const float value = normal(random);
      dtype == DType::kBF16 ? bf16_.push_back(BFloat16(value)) : f32_.push_back(value);
    }
    view_.data = dtype == DType::kBF16 ? static_cast<const void*>(bf16_.data()) : f32_.data();
    view_.row_index = gather_rows ? row_index_.data() : nullptr;
    view_.col_index = gather_cols ? col_index_.data() : nullptr;
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  const MatrixView& view() const { return view_; }

  double at(int64_t row, int64_t col) const {
    const int64_t r = row_index_.empty() ? row : row_index_[static_cast<size_t>(row)];
    const int64_t c = col_index_.empty() ? col : col_index_[static_cast<size_t>(col)];
    const auto i = static_cast<size_t>(r * view_.row_stride + c * view_.col_stride);
    return view_.dtype == DType::kBF16 ? static_cast<float>(bf16_[i]) : f32_[i];
  }

 private:
  static std::vector<int32_t> indices(int64_t count, std::mt19937& random) {
    std::vector<int32_t> result(static_cast<size_t>(count));
    for (int32_t& i : result) i = static_cast<int32_t>(random() % static_cast<uint64_t>(count + 5));
    return result;
  }

  int64_t rows_, cols_;
  std::vector<float> f32_;
  std::vector<BFloat16> bf16_;
  std::vector<int32_t> row_index_, col_index_;
  MatrixView view_;
};

/// C with a margin that must not change.
struct Output {
  Output(int64_t rows, int64_t cols, DType dtype_, float fill) : dtype(dtype_), ld(cols + 5) {
    const auto size = static_cast<size_t>(rows * ld);
    if (dtype == DType::kBF16) {
      bf16.assign(size, BFloat16(fill));
    } else {
      f32.assign(size, fill);
    }
  }
  void* data() { return dtype == DType::kBF16 ? static_cast<void*>(bf16.data()) : f32.data(); }
  double at(int64_t r, int64_t c) const {
    const auto i = static_cast<size_t>(r * ld + c);
    return dtype == DType::kBF16 ? static_cast<float>(bf16[i]) : f32[i];
  }
  /// Compares bits: zeros of different sign differ.
  bool operator==(const Output& other) const {
    const auto same_f32 = [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); };
    const auto same_bf16 = [](BFloat16 x, BFloat16 y) { return x.bits == y.bits; };
    return std::equal(f32.begin(), f32.end(), other.f32.begin(), other.f32.end(), same_f32) &&
           std::equal(bf16.begin(), bf16.end(), other.bf16.begin(), other.bf16.end(), same_bf16);
  }

  DType dtype;
  int64_t ld;
  std::vector<float> f32;
  std::vector<BFloat16> bf16;
};

GemmArgs product(int64_t m, int64_t n, int64_t k, const MatrixView& a, const MatrixView& b, Output& c) {
  return {.m = m, .n = n, .k = k, .a = a, .b = b, .c = c.data(), .c_dtype = c.dtype, .ldc = c.ld};
}

GemmArgs product(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, Output& c) {
  return product(m, n, k, a.view(), b.view(), c);
}

bool runs_on_amx(const GemmArgs& g) {
  return gemm_rounds() && (g.may_round || (g.a.dtype == DType::kBF16 && g.b.dtype == DType::kBF16));
}

/// The bound of gemm.h. The chain of one block costs at most min(k, kGemmDepth) roundings (twice that without a fused
/// multiply-add), adding the blocks k / kGemmDepth, and alpha, row_scale and beta four; on AMX a step of 32 is two
/// chains of 16, and the steps are one chain. bf16 rounds by 2^-8 at the end.
double error_bound(const GemmArgs& g, double absolute_sum, double old) {
  const double scale = std::abs(g.alpha) * (active_isa() == Isa::kBaseline ? 2 : 1);
  const int64_t depth = runs_on_amx(g) ? 16 : kGemmDepth, block = runs_on_amx(g) ? 32 : kGemmDepth;
  const int64_t blocks = g.k / block;
  const auto roundings = static_cast<double>(std::min(g.k, depth) + blocks + (runs_on_amx(g) ? 6 : 4));
  const double in_f32 = std::ldexp(roundings, -24) * (scale * absolute_sum + std::abs(g.beta * old));
  const double magnitude = std::abs(g.alpha) * absolute_sum + std::abs(g.beta * old);
  return in_f32 + (g.c_dtype == DType::kBF16 ? std::ldexp(magnitude, -8) : 0.0) + 1e-30;
}

double rounded(double value) { return static_cast<float>(BFloat16(static_cast<float>(value))); }

void expect_product(const GemmArgs& g, const Matrix& a, const Matrix& b, const Output& c, float fill) {
  for (int64_t r = 0; r < g.m; ++r) {
    const double row_scale = g.row_scale ? g.row_scale[r] : 1.0;
    for (int64_t col = 0; col < g.n; ++col) {
      double sum = 0, absolute = 0;
      for (int64_t i = 0; i < g.k; ++i) {
        const double term =
            g.may_round && gemm_rounds() ? rounded(a.at(r, i)) * rounded(b.at(i, col)) : a.at(r, i) * b.at(i, col);
        sum += term;
        absolute += std::abs(term);
      }
      const double old = g.beta == 0.0f ? 0.0 : static_cast<double>(fill);
      const double expected = g.alpha * row_scale * sum + g.beta * old;
      ASSERT_NEAR(c.at(r, col), expected, error_bound(g, absolute * std::abs(row_scale), old))
          << "m " << g.m << " n " << g.n << " k " << g.k << " at " << r << ", " << col;
    }
    for (int64_t col = g.n; col < c.ld; ++col) ASSERT_TRUE(c.at(r, col) == fill || std::isnan(fill)) << "margin";
  }
}

class Gemm : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "this machine does not run " << name_of(GetParam()) << " code";
    forced_.emplace(GetParam());
  }

  std::optional<ForcedIsa> forced_;
  std::mt19937 random_{20240501};
  ThreadPool pool_{3};
};

INSTANTIATE_TEST_SUITE_P(AllIsas, Gemm, testing::Values(Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
                         [](const auto& isa) { return std::string(name_of(isa.param)); });

TEST_P(Gemm, MatchesTheDoubleReferenceForAllSizesNearTheEdges) {
  for (const int64_t m : kSizes) {
    for (const int64_t n : kSizes) {
      const int64_t k = kSizes[random_() % std::size(kSizes)];
      const Matrix a(m, k, DType::kF32, Layout::kRowMajor, random_),
          b(k, n, DType::kF32, Layout::kColumnMajor, random_);
      Output c(m, n, DType::kF32, 0.5f);
      const GemmArgs g = product(m, n, k, a, b, c);
      gemm(pool_, g);
      ASSERT_NO_FATAL_FAILURE(expect_product(g, a, b, c, 0.5f));
    }
  }
}

TEST_P(Gemm, MatchesForAllLayoutsAndDtypes) {
  constexpr Layout kLayouts[] = {Layout::kRowMajor, Layout::kColumnMajor, Layout::kStrided};
  constexpr DType kDtypes[] = {DType::kF32, DType::kBF16};
  const int64_t m = 19, n = 37, k = 43;
  for (const Layout layout_a : kLayouts) {
    for (const Layout layout_b : kLayouts) {
      for (int dtypes = 0; dtypes < 8; ++dtypes) {
        const Matrix a(m, k, kDtypes[dtypes & 1], layout_a, random_),
            b(k, n, kDtypes[dtypes >> 1 & 1], layout_b, random_);
        Output c(m, n, kDtypes[dtypes >> 2], 2.0f);
        GemmArgs g = product(m, n, k, a, b, c);
        gemm(pool_, g);
        ASSERT_NO_FATAL_FAILURE(expect_product(g, a, b, c, 2.0f));
      }
    }
  }
}

TEST_P(Gemm, GathersRowsAndColumnsOfBothOperands) {
  const int64_t m = 21, n = 35, k = 2 * kGemmDepth + 9;
  for (int gathers = 1; gathers < 16; ++gathers) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
      const DType dtype = gathers % 2 == 0 ? DType::kBF16 : DType::kF32;
      const Matrix a(m, k, dtype, layout, random_, gathers & 1, gathers & 2);
      const Matrix b(k, n, dtype, layout, random_, gathers & 4, gathers & 8);
      Output c(m, n, DType::kF32, 0.0f);
      const GemmArgs g = product(m, n, k, a, b, c);
      gemm(pool_, g);
      ASSERT_NO_FATAL_FAILURE(expect_product(g, a, b, c, 0.0f));
    }
  }
}

/// Column by column, the operands are swapped on AMX, which makes packing cheaper.
TEST_P(Gemm, AppliesAlphaBetaAndRowScale) {
  const int64_t m = 37, n = 41;
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    for (const int64_t k : {5L, 3 * kGemmDepth + 1}) {
      for (const int dtypes : {0, 1, 2, 3}) {
        const Matrix a(m, k, DType::kF32, layout, random_), b(k, n, DType::kF32, layout, random_);
        std::vector<float> scale(static_cast<size_t>(m));
        std::iota(scale.begin(), scale.end(), -3.0f);
        for (const float beta : {0.0f, 1.0f, -0.75f}) {
          Output c(m, n, dtypes & 1 ? DType::kBF16 : DType::kF32, 1.5f);
          GemmArgs g = product(m, n, k, a, b, c);
          g.alpha = 0.3f;
          g.beta = beta;
          g.row_scale = scale.data();
          g.may_round = dtypes & 2;
          gemm(pool_, g);
          ASSERT_NO_FATAL_FAILURE(expect_product(g, a, b, c, 1.5f));
        }
      }
    }
  }
}

/// The terms are added to the float32 product from left to right, and the sum is rounded once.
TEST_P(Gemm, AddsABiasWhatIsThereAndAnotherMatrixBeforeItRounds) {
  for (const auto& [m, n, k] :
       {std::tuple<int64_t, int64_t, int64_t>{37, 41, 5}, {150, 96, 3 * kGemmDepth + 1}, {3, 1, 0}}) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
      for (const int choice : {0, 1, 2, 3}) {
        const DType dtype = choice & 1 ? DType::kBF16 : DType::kF32;
        const Matrix a(m, std::max<int64_t>(k, 1), DType::kF32, layout, random_),
            b(std::max<int64_t>(k, 1), n, DType::kF32, layout, random_), row(1, n, dtype, Layout::kRowMajor, random_);
        Output plain(m, n, DType::kF32, 0.0f), addend(m, n, dtype, 0.0f);
        for (float& value : addend.f32) value = std::normal_distribution<float>()(random_);
        for (BFloat16& value : addend.bf16) value = BFloat16(std::normal_distribution<float>()(random_));
        GemmArgs g = product(m, n, k, a, b, plain);
        g.may_round = choice & 2;
        gemm(pool_, g);
        for (int terms = 0; terms < 8; ++terms) {
          Output c(m, n, dtype, 0.75f);
          GemmArgs summed = product(m, n, k, a, b, c);
          summed.may_round = g.may_round;
          summed.bias = terms & 1 ? row.view().data : nullptr;
          summed.beta = terms & 2 ? 1.0f : 0.0f;
          summed.addend = terms & 4 ? addend.data() : nullptr;
          terms % 2 == 0 ? gemm(pool_, summed) : gemm_serial(summed);
          for (int64_t r = 0; r < m; ++r) {
            for (int64_t col = 0; col < n; ++col) {
              float want = static_cast<float>(plain.at(r, col));
              if (terms & 1) want += static_cast<float>(row.at(0, col));
              if (terms & 2) want += 0.75f;
              if (terms & 4) want += static_cast<float>(addend.at(r, col));
              if (dtype == DType::kBF16) want = static_cast<float>(BFloat16(want));
              ASSERT_EQ(static_cast<float>(c.at(r, col)), want)
                  << "m " << m << " k " << k << " terms " << terms << " at " << r << ", " << col;
            }
            for (int64_t col = n; col < c.ld; ++col) ASSERT_EQ(c.at(r, col), 0.75) << "margin";
          }
        }
      }
    }
  }
}

TEST_P(Gemm, RoundsFloat32OperandsWhereItMay) {
  constexpr Layout kLayouts[] = {Layout::kRowMajor, Layout::kColumnMajor, Layout::kStrided};
  for (const int64_t k : {1, 16, 43, 64, 301}) {
    for (const Layout layout_a : kLayouts) {
      for (const Layout layout_b : kLayouts) {
        const int64_t m = 35, n = 19;
        const Matrix a(m, k, DType::kF32, layout_a, random_, k == 43);
        const Matrix b(k, n, k == 301 ? DType::kF32 : DType::kBF16, layout_b, random_, k == 43);
        Output c(m, n, DType::kF32, 0.5f);
        GemmArgs g = product(m, n, k, a, b, c);
        g.may_round = true;
        gemm(pool_, g);
        ASSERT_NO_FATAL_FAILURE(expect_product(g, a, b, c, 0.5f));
      }
    }
  }
}

/// Few rows or columns swap the operands and use other kernels; limited memory for packed operands divides m, n and k.
TEST_P(Gemm, BitsOfBfloat16DoNotDependOnShapeOrBlocks) {
  const int64_t m = 1043, n = 1030, k = gemm_rounds() ? 4507 : 2091;  // more than is packed together
  const Matrix a(m, k, DType::kBF16, Layout::kRowMajor, random_), b(k, n, DType::kBF16, Layout::kColumnMajor, random_);
  const int64_t most = gemm_rounds() ? m : 150;  // other instruction sets are slower
  Output all(m, n, DType::kF32, 0.0f), serial(m, n, DType::kF32, 0.0f);
  gemm(pool_, product(most, n, k, a, b, all));
  gemm_serial(product(most, n, k, a, b, serial));
  EXPECT_EQ(serial, all);
  for (const int64_t rows : {1, 3, 16, 33, 50, 130}) {
    for (const int64_t cols : {1, 17, 48, 1030}) {
      Output some(rows, cols, DType::kF32, 0.0f);
      const int64_t first_row = most - rows, first_col = n - cols;
      MatrixView part_a = a.view(), part_b = b.view();
      part_a.data = static_cast<const BFloat16*>(part_a.data) + first_row * part_a.row_stride;
      part_b.data = static_cast<const BFloat16*>(part_b.data) + first_col * part_b.col_stride;
      gemm(pool_, product(rows, cols, k, part_a, part_b, some));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t col = 0; col < cols; ++col) {
          ASSERT_EQ(some.at(r, col), all.at(first_row + r, first_col + col)) << rows << " x " << cols;
        }
      }
    }
  }
  // Consecutive blocks of k make one sum.
  for (int64_t col = 0; col < n; col += 97) {
    double sum = 0, absolute = 0;
    for (int64_t i = 0; i < k; ++i) {
      sum += a.at(5, i) * b.at(i, col);
      absolute += std::abs(a.at(5, i) * b.at(i, col));
    }
    ASSERT_NEAR(all.at(5, col), sum, error_bound(product(m, n, k, a, b, all), absolute, 0.0));
  }
}

TEST_P(Gemm, BetaZeroOverwritesNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t k : {int64_t{0}, int64_t{7}, 2 * kGemmDepth}) {
    for (const int dtypes : {0, 1, 2, 3}) {
      const int64_t m = 9, n = 21;
      const Matrix a(m, std::max<int64_t>(k, 1), DType::kF32, Layout::kRowMajor, random_);
      const Matrix b(std::max<int64_t>(k, 1), n, DType::kF32, Layout::kRowMajor, random_);
      Output c(m, n, dtypes & 1 ? DType::kBF16 : DType::kF32, nan);
      GemmArgs g = product(m, n, k, a, b, c);
      g.may_round = dtypes & 2;
      gemm(pool_, g);
      ASSERT_NO_FATAL_FAILURE(expect_product(g, a, b, c, nan));
    }
  }
}

TEST_P(Gemm, NanAndInfinityOfTheOperandsReachOnlyTheirRow) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const int64_t m = 16, n = 24, k = 8;
  std::vector<float> a(static_cast<size_t>(m * k), 1.0f), b(static_cast<size_t>(k * n), 1.0f);
  a[3 * 8 + 2] = nan;
  a[5 * 8 + 7] = std::numeric_limits<float>::infinity();
  for (const int dtypes : {0, 1, 2, 3}) {
    Output c(m, n, dtypes & 1 ? DType::kBF16 : DType::kF32, 0.0f);
    GemmArgs g = product(m, n, k, {.data = a.data(), .row_stride = k}, {.data = b.data(), .row_stride = n}, c);
    g.may_round = dtypes & 2;
    gemm(pool_, g);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t col = 0; col < n; ++col) {
        if (r == 3) {
          EXPECT_TRUE(std::isnan(c.at(r, col)));
        } else {
          EXPECT_EQ(c.at(r, col), r == 5 ? std::numeric_limits<double>::infinity() : 8.0);
        }
      }
    }
  }
}

TEST_P(Gemm, EmptyDimensionsScaleOrLeaveC) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Matrix a(4, 4, dtype, Layout::kRowMajor, random_), b(4, 4, dtype, Layout::kRowMajor, random_);
    Output c(4, 4, DType::kF32, 3.0f);
    const Output before = c;
    gemm(pool_, product(0, 4, 4, a, b, c));
    gemm(pool_, product(4, 0, 4, a, b, c));
    EXPECT_EQ(c, before);
    GemmArgs nothing = product(4, 4, 0, MatrixView{.dtype = dtype}, MatrixView{.dtype = dtype}, c);
    nothing.beta = 0.5f;
    gemm(pool_, nothing);
    EXPECT_EQ(c.at(3, 3), 1.5);
    nothing.beta = 0.0f;
    gemm(pool_, nothing);
    EXPECT_EQ(c.at(0, 0), 0.0);
  }
  grouped_gemm(pool_, {});
}

/// On AMX the deep products are divided along k, and use the same memory one after another.
TEST_P(Gemm, EmptyGroupsBetweenDeepOnesScaleC) {
  if (!gemm_rounds()) GTEST_SKIP() << "only AMX has groups of blocks";
  const int64_t m = 840, n = 808, most = 5100;
  const Matrix a(m, most, DType::kBF16, Layout::kColumnMajor, random_);
  const Matrix b(most, n, DType::kBF16, Layout::kRowMajor, random_);
  std::vector<GemmArgs> groups;
  std::vector<Output> grouped, separate;
  const int64_t depths[] = {0, most, 0, most - 31, 40, 0, 0, most, 0};
  for (size_t i = 0; i < std::size(depths); ++i) {
    grouped.emplace_back(m, n, DType::kF32, 3.0f);
    separate.emplace_back(m, n, DType::kF32, 3.0f);
    GemmArgs g = product(m, n, depths[i], a, b, separate.back());
    g.beta = 0.5f;
    gemm_serial(g);
    groups.push_back(g);
  }
  for (size_t i = 0; i < groups.size(); ++i) groups[i].c = grouped[i].data();
  grouped_gemm(pool_, groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(grouped[i], separate[i]) << "group " << i;
    EXPECT_TRUE(depths[i] > 0 || grouped[i].at(m - 1, n - 1) == 1.5) << "group " << i;
  }
}

/// A few rows or columns of operands larger than all memory for packing: read in place, packed during their products,
/// and divided along k.
TEST_P(Gemm, TakesMoreDepthThanIsPackedAtOneTime) {
  if (!gemm_rounds()) GTEST_SKIP() << "others pack blocks of one depth";
  struct Sizes {
    int64_t m, n, k;
    Layout b;
  };
  const Sizes sizes[] = {{16, 128, 65568, Layout::kColumnMajor},
                         {1, 50, 150001, Layout::kRowMajor},
                         {17, 50, 270001, Layout::kRowMajor},
                         {50, 17, 270001, Layout::kColumnMajor}};
  for (const Sizes& s : sizes) {
    const Matrix a(s.m, s.k, DType::kBF16, Layout::kRowMajor, random_), b(s.k, s.n, DType::kBF16, s.b, random_);
    Output c(s.m, s.n, DType::kF32, 0.0f), serial(s.m, s.n, DType::kF32, 0.0f);
    const GemmArgs g = product(s.m, s.n, s.k, a, b, c);
    gemm(pool_, g);
    gemm_serial(product(s.m, s.n, s.k, a, b, serial));
    EXPECT_EQ(c, serial) << s.m << " x " << s.n << " x " << s.k;
    for (int64_t col = 0; col < s.n; ++col) {
      const int64_t row = (s.m - 1) * col / (s.n - 1);
      double sum = 0, absolute = 0;
      for (int64_t i = 0; i < s.k; ++i) {
        sum += a.at(row, i) * b.at(i, col);
        absolute += std::abs(a.at(row, i) * b.at(i, col));
      }
      ASSERT_NEAR(c.at(row, col), sum, error_bound(g, absolute, 0.0)) << s.m << " x " << s.n << " x " << s.k;
    }
  }
}

TEST_P(Gemm, BitsDoNotDependOnTheNumberOfThreads) {
  const int64_t m = 301, n = 517, k = 2 * kGemmDepth + 100;
  const Matrix a(m, k, DType::kBF16, Layout::kRowMajor, random_), b(k, n, DType::kBF16, Layout::kColumnMajor, random_);
  Output serial(m, n, DType::kF32, 0.25f);
  GemmArgs g = product(m, n, k, a, b, serial);
  g.beta = 2.0f;
  g.alpha = 0.7f;
  gemm_serial(g);
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    Output c(m, n, DType::kF32, 0.25f);
    g.c = c.data();
    gemm(pool, g);
    EXPECT_EQ(c, serial) << threads << " threads";
  }
}

/// Large results are written with non-temporal stores where they consist of whole vectors; the last columns do not.
TEST_P(Gemm, BitsOfALargeResultAreThoseOfASerialOne) {
  constexpr int64_t m = 1100, n = 489, k = 300, ldc = 512, size = m * ldc;
  const Matrix a(m, k, DType::kF32, Layout::kRowMajor, random_), b(k, n, DType::kF32, Layout::kColumnMajor, random_);
  const auto aligned = [] {
    const auto release = [](float* memory) { std::free(memory); };
    std::unique_ptr<float[], decltype(release)> c(static_cast<float*>(std::aligned_alloc(64, size * sizeof(float))));
    std::fill_n(c.get(), size, 7.0f);
    return c;
  };
  const auto all = aligned(), serial = aligned();
  GemmArgs g{.m = m, .n = n, .k = k, .a = a.view(), .b = b.view(), .c = all.get(), .ldc = ldc, .alpha = 0.5f};
  gemm(pool_, g);
  g.c = serial.get();
  gemm_serial(g);
  for (int64_t i = 0; i < size; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(all[i]), std::bit_cast<uint32_t>(serial[i])) << i / ldc << ", " << i % ldc;
    ASSERT_EQ(all[i] == 7.0f, i % ldc >= n) << i / ldc << ", " << i % ldc;
  }
}

TEST_P(Gemm, BitsOfARowDoNotDependOnItsNeighbours) {
  const int64_t m = 67, n = 83, k = kGemmDepth + 57;
  const Matrix a(m, k, DType::kF32, Layout::kRowMajor, random_), b(k, n, DType::kF32, Layout::kRowMajor, random_);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Output all(m, n, dtype, 1.0f);
    GemmArgs g = product(m, n, k, a, b, all);
    g.beta = -0.3f;
    g.alpha = 1.1f;
    gemm(pool_, g);
    for (int64_t rows : {1L, 2L, 3L, 5L, 8L, 20L}) {
      for (int64_t first = 0; first + rows <= m; first += rows) {
        Output some(rows, n, dtype, 1.0f);
        MatrixView part = a.view();
        part.data = static_cast<const float*>(part.data) + first * part.row_stride;
        GemmArgs p = product(rows, n, k, part, b.view(), some);
        p.beta = g.beta;
        p.alpha = g.alpha;
        gemm(pool_, p);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t col = 0; col < n; ++col) ASSERT_EQ(some.at(r, col), all.at(first + r, col)) << rows << " rows";
        }
      }
    }
  }
}

TEST_P(Gemm, BitsOfAColumnDoNotDependOnItsNeighboursOrTheLayout) {
  const int64_t m = 30, n = 70, k = 91;
  const Matrix a(m, k, DType::kBF16, Layout::kRowMajor, random_), b(k, n, DType::kBF16, Layout::kColumnMajor, random_);
  Output all(m, n, DType::kF32, 0.0f);
  gemm(pool_, product(m, n, k, a, b, all));
  std::vector<BFloat16> b_rows(static_cast<size_t>(k * n));
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t col = 0; col < n; ++col) {
      b_rows[static_cast<size_t>(i * n + col)] = BFloat16(static_cast<float>(b.at(i, col)));
    }
  }
  for (int64_t cols : {1L, 9L, 33L}) {
    for (int64_t first = 0; first + cols <= n; first += cols) {
      Output some(m, cols, DType::kF32, 0.0f);
      const MatrixView part{.data = b_rows.data() + first, .dtype = DType::kBF16, .row_stride = n};
      gemm(pool_, product(m, cols, k, a.view(), part, some));
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t col = 0; col < cols; ++col) ASSERT_EQ(some.at(r, col), all.at(r, first + col));
      }
    }
  }
}

/// Operands whose rows of A or columns of B are contiguous are read in place if they are used few times, others packed.
TEST_P(Gemm, BitsDoNotDependOnTheLayoutOfFloat32) {
  for (const int64_t k : {int64_t{9}, kGemmDepth + 44}) {
    for (const int64_t m : {1, 3, 14, 15, 56, 57, 100}) {
      for (const int64_t n : {8, 16, 40, 64, 97, 160}) {
        const Matrix a(m, k, DType::kF32, Layout::kColumnMajor, random_);
        const Matrix b(k, n, DType::kF32, Layout::kRowMajor, random_);
        std::vector<float> rows_of_a, columns_of_b;
        for (int64_t row = 0; row < m; ++row) {
          for (int64_t i = 0; i < k; ++i) rows_of_a.push_back(static_cast<float>(a.at(row, i)));
        }
        for (int64_t col = 0; col < n; ++col) {
          for (int64_t i = 0; i < k; ++i) columns_of_b.push_back(static_cast<float>(b.at(i, col)));
        }
        const MatrixView a_by_k{.data = rows_of_a.data(), .row_stride = k};
        const MatrixView b_by_k{.data = columns_of_b.data(), .row_stride = 1, .col_stride = k};
        Output want(m, n, DType::kF32, 0.0f);
        gemm(pool_, product(m, n, k, a_by_k, b_by_k, want));
        for (const auto& [of_a, of_b] : {std::pair{a.view(), b.view()}, {a.view(), b_by_k}, {a_by_k, b.view()}}) {
          Output got(m, n, DType::kF32, 0.0f);
          gemm(pool_, product(m, n, k, of_a, of_b, got));
          ASSERT_TRUE(got == want) << "m " << m << " n " << n << " k " << k;
        }
      }
    }
  }
}

TEST_P(Gemm, GroupsGiveTheBitsOfSeparateProducts) {
  const int64_t n = 65, k = kGemmDepth + 3;
  const int64_t rows_of_expert[] = {0, 1, 2, 0, 700, 15, 64, 0};
  const Matrix x(1000, k, DType::kBF16, Layout::kRowMajor, random_, true);
  std::vector<std::unique_ptr<Matrix>> weights;
  Output grouped(1000, n, DType::kBF16, 0.0f), separate(1000, n, DType::kBF16, 0.0f);
  std::vector<GemmArgs> groups;
  int64_t first = 0;
  for (const int64_t rows : rows_of_expert) {
    weights.push_back(std::make_unique<Matrix>(k, n, DType::kBF16, Layout::kColumnMajor, random_));
    MatrixView a = x.view();
    a.row_index += first;
    GemmArgs g = product(rows, n, k, a, weights.back()->view(), grouped);
    g.c = grouped.bf16.data() + first * grouped.ld;
    groups.push_back(g);
    g.c = separate.bf16.data() + first * separate.ld;
    gemm_serial(g);
    first += rows;
  }
  grouped_gemm(pool_, groups);
  EXPECT_EQ(grouped, separate);
  EXPECT_NE(grouped.at(750, 3), 0.0);
}

TEST_P(Gemm, RunsInsideATaskOfThePool) {
  const int64_t m = 40, n = 40, k = 300;
  const Matrix a(m, k, DType::kF32, Layout::kRowMajor, random_), b(k, n, DType::kF32, Layout::kRowMajor, random_);
  Output alone(m, n, DType::kF32, 0.0f);
  gemm_serial(product(m, n, k, a, b, alone));
  std::vector<Output> outputs(8, Output(m, n, DType::kF32, 0.0f));
  pool_.parallel_for(8, [&](int64_t i, int) {
    const GemmArgs g = product(m, n, k, a, b, outputs[static_cast<size_t>(i)]);
    i % 2 == 0 ? gemm_serial(g) : gemm(pool_, g);
  });
  for (const Output& c : outputs) EXPECT_EQ(c, alone);
}

TEST_P(Gemm, CoversSeveralTilesAndBlocks) {
  const int64_t m = 500, n = 600, k = 2 * kGemmDepth + 17;
  const Matrix a(m, k, DType::kBF16, Layout::kColumnMajor, random_),
      b(k, n, DType::kF32, Layout::kColumnMajor, random_);
  Output c(m, n, DType::kF32, 0.0f);
  gemm_serial(product(m, n, k, a, b, c));
  // Freivalds' check: C x = A (B x) for a random x, with errors bounded per row as in gemm.h.
  std::vector<double> x(static_cast<size_t>(n)), bx(static_cast<size_t>(k)), abs_bx(static_cast<size_t>(k));
  for (double& v : x) v = static_cast<double>(random_() % 1000) / 500 - 1;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t col = 0; col < n; ++col) {
      bx[static_cast<size_t>(i)] += b.at(i, col) * x[static_cast<size_t>(col)];
      abs_bx[static_cast<size_t>(i)] += std::abs(b.at(i, col) * x[static_cast<size_t>(col)]);
    }
  }
  for (int64_t r = 0; r < m; ++r) {
    double got = 0, expected = 0, absolute = 0;
    for (int64_t col = 0; col < n; ++col) got += c.at(r, col) * x[static_cast<size_t>(col)];
    for (int64_t i = 0; i < k; ++i) {
      expected += a.at(r, i) * bx[static_cast<size_t>(i)];
      absolute += std::abs(a.at(r, i)) * abs_bx[static_cast<size_t>(i)];
    }
    GemmArgs g;
    g.k = k;
    ASSERT_NEAR(got, expected, error_bound(g, absolute, 0.0)) << "row " << r;
  }
}

}  // namespace
}  // namespace hone
