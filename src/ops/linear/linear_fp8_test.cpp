// Linears in 8-bit floats beside products of the operands that fp8_operand makes, in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "formats/fp8_names.h"
#include "kernels/op_testing.h"
#include "ops/cast/cast.h"
#include "ops/linear/fp8_base.h"
#include "ops/linear/linear.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;
using testing::TestTensor;
using testing::Values;

constexpr Fp8Recipe kFp8Recipes[] = {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise, Fp8Recipe::kBlockwise};
constexpr float kFp8Scaling = 0.5f;
/// Relative to the norm: y is rounded to bfloat16, and tensor cores keep some 14 bits of a sum.
constexpr double kFp8Bound = 6e-3;

struct Fp8Sizes {
  int64_t tokens, in, out, rank = 0;
  bool bias = false;
};

class LinearFp8 : public ::testing::TestWithParam<Fp8Recipe> {
 protected:
  LinearFp8() : pool_(2), stream_(pool_), scratch_(test_device(), "scratch"), context_(stream_, scratch_) {
    scratch_.reserve(size_t{32} << 20);
  }

  static std::vector<BFloat16> random(int64_t count, uint64_t key, float scale = 1.0f) {
    PhiloxSequence sequence(key);
    std::vector<BFloat16> values;
    for (int64_t i = 0; i < count; ++i) values.emplace_back(scale * sequence.normal());
    return values;
  }
  template <class T>
  Values host(const Tensor& tensor) {
    const std::vector<T> values = stream_.download<T>(tensor);
    Values result;
    for (const T& value : values) result.push_back(static_cast<double>(static_cast<float>(value)));
    return result;
  }

  /// The numbers of an operand, [rows, k].
  Values numbers(const Fp8Operand& operand, bool weight) {
    const std::vector<uint8_t> codes = stream_.download<uint8_t>(operand.codes);
    const Values scales = host<float>(operand.scales);
    const int64_t k = operand.codes.shape[1], pitch = operand.scales.shape[-1];
    Values values;
    for (int64_t i = 0; i < operand.codes.numel(); ++i) {
      const int64_t row = i / k, column = i % k;
      int64_t at = GetParam() == Fp8Recipe::kRowwise ? row : 0;
      if (GetParam() == Fp8Recipe::kBlockwise) {
        at = weight ? row / kFp8Block * pitch + column / kFp8Block : column / kFp8Block * pitch + row;
      }
      const uint8_t code = codes[static_cast<size_t>(i)];
      const float number = operand.code == Fp8Code::kE4m3 ? e4m3_value(code) : e5m2_value(code);
      values.push_back(static_cast<double>(number) * scales[static_cast<size_t>(at)]);
    }
    return values;
  }

  /// x [rows, k] times the operand that a weight is, [columns, k], transposed.
  Values product(const WeightView& w, const Tensor& x, bool for_dx) {
    const Fp8Base base(context_, GetParam(), w, for_dx);
    ArenaScope scope(scratch_);
    const Values a = numbers(base.round(context_, scope, x), false), b = numbers(base.operand(), true);
    return product(a, b, x.shape[0], x.shape[1]);
  }
  /// a [m, k] times b [n, k] transposed; a may have further rows.
  static Values product(const Values& a, const Values& b, int64_t m, int64_t columns) {
    const auto k = static_cast<size_t>(columns), n = b.size() / k;
    Values c;
    for (size_t row = 0; row < static_cast<size_t>(m); ++row) {
      for (size_t column = 0; column < n; ++column) {
        double sum = 0;
        for (size_t i = 0; i < k; ++i) sum += a[row * k + i] * b[column * k + i];
        c.push_back(sum);
      }
    }
    return c;
  }

  static void expect_near(const Values& got, const Values& want, const char* what) {
    ASSERT_EQ(got.size(), want.size());
    double difference = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(difference), kFp8Bound * std::sqrt(norm)) << what;
  }

  /// Forward and backward of one weight, whose view reads `values`.
  void expect_products(const Fp8Sizes& sizes, const WeightView& w) {
    SCOPED_TRACE(::testing::Message() << sizes.tokens << " tokens, " << sizes.in << " to " << sizes.out << " rank "
                                      << sizes.rank);
    const int64_t t = sizes.tokens, in = sizes.in, out = sizes.out, r = sizes.rank;
    const TestTensor<BFloat16> x(random(t * in, 1), {t, in}), dy(random(t * out, 2), {t, out});
    const TestTensor<BFloat16> bias(random(out, 3), {out}), lora_a(random(r * in, 4, 0.1f), {r, in});
    const TestTensor<BFloat16> lora_b(random(out * r, 5), {out, r}), before(random(t * in, 6), {t, in});
    const TestTensor<float> xa(std::vector<float>(static_cast<size_t>(t * r), 0.25f), {t, r});
    ArenaScope scope(scratch_);
    const Tensor y = scope.take({t, out}, DType::kBF16), dx = scope.take({t, in}, DType::kBF16);
    const Tensor dxa = scope.take({t, r}, DType::kF32), added = scope.take({t, in}, DType::kBF16);

    LinearArgs args{.x = x, .w = w, .scaling = kFp8Scaling, .fp8 = GetParam(), .y = y};
    if (sizes.bias) args.bias = bias;
    if (r > 0) args.xa = xa, args.lora_b = lora_b;
    linear(context_, args);
    Values want = product(w, x, false);
    const Values of_bias = host<BFloat16>(bias), b = host<BFloat16>(lora_b);
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t column = i % static_cast<size_t>(out);
      if (sizes.bias) want[i] += of_bias[column];
      for (size_t j = 0; j < static_cast<size_t>(r); ++j) {
        want[i] += static_cast<double>(kFp8Scaling) * 0.25 * b[column * static_cast<size_t>(r) + j];
      }
    }
    expect_near(host<BFloat16>(y), want, "y");

    LinearGradArgs back{.dy = dy,
                        .w = w,
                        .scaling = kFp8Scaling,
                        .fp8 = GetParam(),
                        .dx = {dx, 0.0f},
                        .dw = {},
                        .dbias = {},
                        .dxa = {},
                        .dlora_b = {}};
    if (r > 0) {
      back.xa = xa, back.lora_b = lora_b, back.lora_a = lora_a;
      back.dxa = {dxa, 0.0f};
    }
    linear_grad(context_, back);
    want = product(w, dy, true);
    if (r > 0) {
      const Values through = host<float>(dxa), a = host<BFloat16>(lora_a);
      for (size_t i = 0; i < want.size(); ++i) {
        const size_t row = i / static_cast<size_t>(in), column = i % static_cast<size_t>(in);
        for (size_t j = 0; j < static_cast<size_t>(r); ++j) {
          want[i] += through[row * static_cast<size_t>(r) + j] * a[j * static_cast<size_t>(in) + column];
        }
      }
    }
    expect_near(host<BFloat16>(dx), want, "dx");

    copy(context_, before, added);
    back.dx = {added, 1.0f};
    linear_grad(context_, back);
    const Values old = host<BFloat16>(before);
    for (size_t i = 0; i < want.size(); ++i) want[i] += old[i];
    expect_near(host<BFloat16>(added), want, "dx that is added");
  }

  /// The gradient of a trained weight, in float32 and bfloat16, once and added.
  void expect_weight_gradient(int64_t tokens, int64_t in, int64_t out) {
    SCOPED_TRACE(::testing::Message() << tokens << " tokens, " << in << " to " << out);
    const TestTensor<BFloat16> x(random(tokens * in, 1), {tokens, in}), dy(random(tokens * out, 2), {tokens, out});
    ArenaScope scope(scratch_);
    const Fp8WeightGradient operands(context_, scope, GetParam(), dy, x);
    Values want = product(numbers(operands.dy, false), numbers(operands.x, false), out, operands.x.codes.shape[1]);
    LinearGradArgs args{.dy = dy,
                        .x = x,
                        .fp8 = {GetParam(), true},
                        .dx = {},
                        .dw = {scope.take({out, in}, DType::kBF16), 0.0f},
                        .dbias = {},
                        .dxa = {},
                        .dlora_b = {}};
    linear_grad(context_, args);
    expect_near(host<BFloat16>(args.dw.dst), want, "dw in bfloat16");
    args.dw.dst = scope.take({out, in}, DType::kF32);
    linear_grad(context_, args);
    expect_near(host<float>(args.dw.dst), want, "dw in float32");
    args.dw.beta = 1.0f;
    linear_grad(context_, args);
    for (double& value : want) value *= 2.0;
    expect_near(host<float>(args.dw.dst), want, "dw that is added");
  }

  ThreadPool pool_;
  TestStream stream_;
  Arena scratch_;
  Context context_;
};

INSTANTIATE_TEST_SUITE_P(Recipes, LinearFp8, ::testing::ValuesIn(kFp8Recipes),
                         [](const auto& recipe) { return std::string(name_of(recipe.param)); });

TEST_P(LinearFp8, MultipliesTheRoundedOperands) {
  for (const Fp8Sizes& sizes : {Fp8Sizes{1, 16, 16}, Fp8Sizes{37, 272, 144, 0, true}, Fp8Sizes{64, 512, 256, 8},
                                Fp8Sizes{5, 128, 400, 3, true}}) {
    const TestTensor<BFloat16> w(random(sizes.in * sizes.out, 7, 0.05f), {sizes.out, sizes.in});
    expect_products(sizes, {w.tensor()});
  }
}

TEST_P(LinearFp8, MultipliesTheRoundedOperandsOfAWeightsGradient) {
  expect_weight_gradient(1, 16, 32);
  expect_weight_gradient(37, 272, 144);
  expect_weight_gradient(300, 128, 400);
}

TEST_P(LinearFp8, LeavesAWeightsGradientInBfloat16) {
  const TestTensor<BFloat16> x(random(64 * 32, 1), {64, 32}), dy(random(64 * 48, 2), {64, 48});
  ArenaScope scope(scratch_);
  const auto gradient = [&](Fp8Products fp8) {
    const Tensor dw = scope.take({48, 32}, DType::kF32);
    linear_grad(context_,
                {.dy = dy, .x = x, .fp8 = fp8, .dx = {}, .dw = {dw, 0.0f}, .dbias = {}, .dxa = {}, .dlora_b = {}});
    return host<float>(dw);
  };
  EXPECT_EQ(gradient({GetParam(), false}), gradient({}));
  EXPECT_NE(gradient({GetParam(), true}), gradient({}));
}

TEST_P(LinearFp8, ReadsTheCodesOfPackedWeights) {
  if (GetParam() == Fp8Recipe::kTensorwise) GTEST_SKIP() << "no packed format has one scale";
  const PackedFormat& format = GetParam() == Fp8Recipe::kRowwise ? fp8_rows_format() : fp8_format();
  for (const Fp8Sizes& sizes : {Fp8Sizes{37, 272, 144, 0, true}, Fp8Sizes{64, 512, 256, 8}}) {
    const PackedLayout layout = format.layout(sizes.out, sizes.in);
    std::vector<float> values;
    for (const BFloat16 value : random(sizes.in * sizes.out, 7, 0.05f)) values.push_back(value);
    std::vector<uint8_t> chunk(static_cast<size_t>(layout.bytes));
    format.pack(layout, values.data(), reinterpret_cast<std::byte*>(chunk.data()));
    const TestTensor<uint8_t> chunks(chunk, {1, layout.bytes});
    expect_products(sizes, {.payload = {nullptr, DType::kBF16, {sizes.out, sizes.in}, test_device()},
                            .format = &format,
                            .packed = PackedWeight{layout, chunks, DType::kBF16, &format}});
  }
}

}  // namespace
}  // namespace hone
