#include "kernels/cuda/grouped_gemm/grouped_gemm.h"

#include "kernels/cuda/grouped_gemm/grouped_testing.h"

#if HONE_CUDA

namespace hone {
namespace {

using testing::expect_within;
using testing::kTiny;
using testing::kUneven;
using testing::rounding;
using testing::sum_error;
using testing::TestTensor;
using Device = testing::GroupedRun;
using Matrix = testing::GroupedMatrix;
using Rows = testing::GroupedRows;
using Sum = testing::GroupedSum;

/// Relative error of silu and its slope in float32, with the approximate exponential of gates up to 10.
constexpr double kGateError = 0x1p-17;

struct Sizes {
  std::vector<int64_t> groups;  // rows of each group
  int64_t k, n;
  int64_t extra = 0;
};

std::vector<Sizes> product_sizes() {
  return {
      {kTiny, 1, 1},     {kTiny, 5, 3},          {kTiny, 8, 16, 8},      {kTiny, 17, 2, 8},
      {{0, 0}, 16, 16},  {{0, 300, 0}, 64, 128}, {kUneven, 40, 48},      {kUneven, 37, 66, 8},
      {kUneven, 64, 96}, {kUneven, 192, 320, 8}, {kUneven, 136, 72, 40}, {kUneven, 64, 512, 128},
  };
}

class GroupedGemm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::test_device().kind != DeviceKind::kCuda) GTEST_SKIP() << "products of a GPU";
  }
};

void check_product(const Sizes& s, DType dtype, bool gathers, bool transposed) {
  SCOPED_TRACE(::testing::Message() << s.groups.size() << " groups, K " << s.k << " N " << s.n << " J " << s.extra
                                    << (gathers ? " gathered" : "") << (transposed ? " transposed " : " ")
                                    << name_of(dtype));
  const Rows rows(s.groups);
  const auto groups = static_cast<int64_t>(s.groups.size());
  const Matrix a({gathers ? rows.tokens : rows.count, s.k}, 1, dtype);
  const Matrix w(transposed ? Shape{groups, s.k, s.n} : Shape{groups, s.n, s.k}, 2, dtype, 0.3);
  const Matrix extra_a({rows.count, s.extra}, 3, dtype), extra_w({groups, s.n, s.extra}, 4, dtype);
  Matrix c = Matrix::unwritten({rows.count, s.n}, dtype);
  const bool gated = s.n % 2 == 0 && !transposed;
  Matrix activation = Matrix::unwritten({rows.count, s.n / 2}, dtype);
  Device on;
  on.run<cuda::GroupedGemmArgs>(&cuda::grouped_gemm, {.groups = rows.groups(),
                                                      .a = a,
                                                      .a_rows = gathers ? rows.token_tensor.tensor() : Tensor{},
                                                      .w = w,
                                                      .w_transposed = transposed,
                                                      .extra_a = s.extra > 0 ? extra_a : Tensor{},
                                                      .extra_w = s.extra > 0 ? extra_w : Tensor{},
                                                      .c = c,
                                                      .activation = gated ? activation : Tensor{}});
  c.read();
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t e = rows.group[static_cast<size_t>(r)];
    const int64_t from = gathers ? rows.token[static_cast<size_t>(r)] : r;
    for (int64_t n = 0; n < s.n; ++n) {
      Sum sum;
      for (int64_t k = 0; k < s.k; ++k) {
        sum.add(a[from * s.k + k], w[e * s.n * s.k + (transposed ? k * s.n + n : n * s.k + k)]);
      }
      for (int64_t j = 0; j < s.extra; ++j) sum.add(extra_a[r * s.extra + j], extra_w[(e * s.n + n) * s.extra + j]);
      const double bound = sum_error(sum, s.k + s.extra) * 1.01 + rounding(dtype) * std::abs(sum.value);
      expect_within(c[r * s.n + n], sum.value, bound, "product", r * s.n + n);
    }
  }
  if (!gated) return;
  activation.read();
  for (int64_t r = 0; r < rows.count; ++r) {
    for (int64_t i = 0; i < s.n / 2; ++i) {
      const double gate = c[r * s.n + i], up = c[r * s.n + s.n / 2 + i], want = gate / (1 + std::exp(-gate)) * up;
      expect_within(activation[r * s.n / 2 + i], want, (rounding(dtype) + kGateError) * std::abs(want) + 1e-30,
                    "activation", r * s.n / 2 + i);
    }
  }
}

TEST_F(GroupedGemm, MatchesTheSumOfProductsOfEachRow) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Sizes& sizes : product_sizes()) {
      for (bool gathers : {false, true}) {
        for (bool transposed : {false, true}) check_product(sizes, dtype, gathers, transposed);
      }
    }
  }
}

void check_dswiglu(const Sizes& s, DType dtype, bool in_place, bool wants_all) {
  SCOPED_TRACE(::testing::Message() << s.groups.size() << " groups, H " << s.k << " I " << s.n << " J " << s.extra
                                    << (in_place ? " in place " : " ") << name_of(dtype));
  const Rows rows(s.groups);
  const auto groups = static_cast<int64_t>(s.groups.size());
  const int64_t width = s.n;
  // Indices of choices by row: a permutation.
  std::vector<int32_t> choices(static_cast<size_t>(rows.count));
  std::iota(choices.rbegin(), choices.rend(), 0);
  const TestTensor<int32_t> assignment(choices, {rows.count});
  const Matrix dout({rows.tokens, s.k}, 1, dtype), w({groups, s.k, width}, 2, dtype, 0.3);
  const Matrix extra_a({rows.count, s.extra}, 3, dtype), extra_w({groups, width, s.extra}, 4, dtype);
  const Matrix h({rows.count, 2 * width}, 5, dtype), weights({rows.count, 1}, 6, dtype);
  Matrix dh = in_place ? Matrix({rows.count, 2 * width}, 5, dtype) : Matrix::unwritten({rows.count, 2 * width}, dtype);
  Matrix scaled_act = Matrix::unwritten({rows.count, width}, dtype);
  Matrix dweights = Matrix::unwritten({rows.count, 1}, DType::kF32);
  Device on;
  on.run<cuda::GroupedDswigluArgs>(&cuda::grouped_dswiglu, {.groups = rows.groups(),
                                                            .token = rows.token_tensor,
                                                            .assignment = assignment,
                                                            .dout = dout,
                                                            .w = w,
                                                            .extra_a = s.extra > 0 ? extra_a : Tensor{},
                                                            .extra_w = s.extra > 0 ? extra_w : Tensor{},
                                                            .h = in_place ? dh : h,
                                                            .weights = weights,
                                                            .dh = dh,
                                                            .scaled_act = wants_all ? scaled_act : Tensor{},
                                                            .dweights = wants_all ? dweights : Tensor{}});
  dh.read();
  scaled_act.read();
  dweights.read();
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t e = rows.group[static_cast<size_t>(r)], token = rows.token[static_cast<size_t>(r)];
    const int64_t choice = choices[static_cast<size_t>(r)];
    const double scale = weights[choice];
    double dot = 0, dot_bound = 0;
    for (int64_t i = 0; i < width; ++i) {
      Sum dact;
      for (int64_t k = 0; k < s.k; ++k) dact.add(dout[token * s.k + k], w[(e * s.k + k) * width + i]);
      for (int64_t j = 0; j < s.extra; ++j) {
        dact.add(extra_a[r * s.extra + j], extra_w[(e * width + i) * s.extra + j]);
      }
      const double gate = h[r * 2 * width + i], up = h[r * 2 * width + width + i], sigmoid = 1 / (1 + std::exp(-gate));
      const double silu = gate * sigmoid, slope = sigmoid * (1 + gate * (1 - sigmoid)), act = silu * up;
      const double dact_error = sum_error(dact, s.k + s.extra);
      const auto expect = [&](int64_t at, double factor, double factor_error, const char* what) {
        const double want = scale * dact.value * factor;
        const double bound = std::abs(scale * factor) * dact_error + rounding(dtype) * std::abs(want) +
                             std::abs(scale * dact.value) * factor_error + 1e-30;
        expect_within(dh[at], want, bound * 1.01, what, at);
      };
      // The slope is a difference of terms up to 1 + |gate|.
      expect(r * 2 * width + i, up * slope, std::abs(up) * (1 + std::abs(gate)) * kGateError, "gradient of gate");
      expect(r * 2 * width + width + i, silu, std::abs(silu) * kGateError, "gradient of up");
      if (wants_all) {
        expect_within(scaled_act[r * width + i], scale * act,
                      (rounding(dtype) + kGateError) * std::abs(scale * act) + 1e-30, "scaled activation",
                      r * width + i);
      }
      dot += dact.value * act;
      dot_bound +=
          std::abs(act) * dact_error + (kGateError + static_cast<double>(width) * 0x1p-24) * std::abs(dact.value * act);
      // A kernel may use the rounded activation, which is the operand of forward's product.
      dot_bound += rounding(dtype) * std::abs(dact.value * act);
    }
    if (wants_all) expect_within(dweights[choice], dot, dot_bound + 1e-30, "gradient of a weight", choice);
  }
}

TEST_F(GroupedGemm, GivesTheGradientOfTheGatedActivation) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Sizes& sizes : product_sizes()) {
      check_dswiglu(sizes, dtype, false, true);
      check_dswiglu(sizes, dtype, true, sizes.extra > 0);
    }
  }
}

void check_wgrad(const Sizes& s, DType dtype, bool gathers_a, bool gathers_b, float beta, DType to = DType::kF32) {
  SCOPED_TRACE(::testing::Message() << s.groups.size() << " groups, M " << s.k << " N " << s.n
                                    << (gathers_a ? " a gathered" : "") << (gathers_b ? " b gathered" : "") << " beta "
                                    << beta << " " << name_of(dtype) << " to " << name_of(to));
  const Rows rows(s.groups);
  const auto groups = static_cast<int64_t>(s.groups.size());
  const Matrix a({gathers_a ? rows.tokens : rows.count, s.k}, 1, dtype);
  const Matrix b({gathers_b ? rows.tokens : rows.count, s.n}, 2, dtype);
  const Shape stack{groups, s.k, s.n};
  const Matrix before(stack, 3, to);
  Matrix dw = beta != 0 ? Matrix(stack, 3, to) : Matrix::unwritten(stack, to);
  Device on;
  on.run<cuda::GroupedWgradArgs>(&cuda::grouped_wgrad, {.groups = rows.groups(),
                                                        .a = a,
                                                        .a_rows = gathers_a ? rows.token_tensor.tensor() : Tensor{},
                                                        .b = b,
                                                        .b_rows = gathers_b ? rows.token_tensor.tensor() : Tensor{},
                                                        .dw = {dw, beta}});
  dw.read();
  for (int64_t e = 0, first = 0; e < groups; ++e) {
    const int64_t count = s.groups[static_cast<size_t>(e)];
    for (int64_t m = 0; m < s.k; ++m) {
      for (int64_t n = 0; n < s.n; ++n) {
        const int64_t at = (e * s.k + m) * s.n + n;
        Sum sum;
        for (int64_t r = first; r < first + count; ++r) {
          const int64_t token = rows.token[static_cast<size_t>(r)];
          sum.add(a[(gathers_a ? token : r) * s.k + m], b[(gathers_b ? token : r) * s.n + n]);
        }
        const double start = beta != 0 ? before[at] : 0.0;
        const double error = sum_error(sum, count);
        const double bound = error + rounding(to) * (std::abs(sum.value) + error + std::abs(start));
        expect_within(dw[at], sum.value + start, count > 0 ? bound : 0.0, "weight gradient", at);
      }
    }
    first += count;
  }
}

TEST_F(GroupedGemm, GivesTheGradientOfEachGroupsWeight) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Sizes& sizes : product_sizes()) {
      check_wgrad(sizes, dtype, false, true, 0.0f);
      check_wgrad(sizes, dtype, true, false, 1.0f);
      check_wgrad(sizes, dtype, false, false, 0.0f);
      check_wgrad(sizes, dtype, false, true, 0.0f, DType::kBF16);
    }
  }
}

}  // namespace
}  // namespace hone

#endif
