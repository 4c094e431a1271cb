// Tests shapes that stress the pipelines of the tensor-core kernels: many tiles per CTA, tile borders within groups,
// operands that end within a step. grouped_gemm_test.cpp has the small shapes of all kernels.
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cuda/grouped_gemm/grouped_gemm.h"
#include "kernels/op_testing.h"

#if HONE_CUDA
#include "core/cpu/thread_pool.h"
#include "kernels/cuda/grouped_gemm/grouped_gemm_hopper.h"
#include "kernels/cuda/grouped_gemm/grouped_gemm_sm80.h"
#include "kernels/cuda/tiers.h"

namespace hone {
namespace {

using testing::TestStream;
using testing::TestTensor;

/// Standard normal values times a scale, rounded to bfloat16, on the host and on the device.
class Factor {
 public:
  Factor(Shape shape, uint64_t key, double scale = 1.0) {
    if (shape[-1] == 0) return;
    std::vector<BFloat16> rounded;
    for (double value : testing::random_argument(shape, key, scale).values) {
      rounded.push_back(BFloat16(static_cast<float>(value)));
      values_.push_back(static_cast<float>(rounded.back()));
    }
    device_ = std::make_shared<TestTensor<BFloat16>>(rounded, shape);
  }
  Tensor tensor() const { return device_ ? device_->tensor() : Tensor{}; }
  float operator[](int64_t i) const { return values_[static_cast<size_t>(i)]; }

 private:
  std::vector<float> values_;
  std::shared_ptr<TestTensor<BFloat16>> device_;
};

/// Device memory filled with bytes 0xff (NaN) until an op writes it.
class Output {
 public:
  Output(Shape shape, DType dtype)
      : buffer_(testing::test_device(), std::max<size_t>(static_cast<size_t>(shape.numel()) * size_of(dtype), 1)),
        tensor_(buffer_.tensor(shape, dtype)) {
    clear();
  }
  void clear() {
    const std::vector<std::byte> bytes(tensor_.bytes(), std::byte{0xff});
    copy_from_host(tensor_, bytes.data(), bytes.size());
  }
  const Tensor& tensor() const { return tensor_; }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> bytes(tensor_.bytes());
    copy_to_host(bytes.data(), tensor_);
    return bytes;
  }
  std::vector<float> floats() const {
    std::vector<float> values;
    dispatch_float(tensor_.dtype, [&](auto element) {
      for (auto value : testing::host_values<decltype(element)>(tensor_)) values.push_back(static_cast<float>(value));
    });
    return values;
  }

 private:
  Buffer buffer_;
  Tensor tensor_;
};

/// Rows of groups, and a token for each row.
struct TokenRows {
  std::vector<int64_t> offsets{0};
  std::vector<int32_t> token, group;
  int64_t tokens;
  std::unique_ptr<TestTensor<int64_t>> device_offsets;
  std::unique_ptr<TestTensor<int32_t>> device_token;

  explicit TokenRows(const std::vector<int64_t>& counts) {
    for (size_t e = 0; e < counts.size(); ++e) {
      offsets.push_back(offsets.back() + counts[e]);
      group.insert(group.end(), static_cast<size_t>(counts[e]), static_cast<int32_t>(e));
    }
    tokens = count() / 3 + 1;
    for (int64_t r = 0; r < count(); ++r) token.push_back(static_cast<int32_t>(r * 11 % tokens));
    device_offsets = std::make_unique<TestTensor<int64_t>>(offsets, Shape{static_cast<int64_t>(offsets.size())});
    device_token = std::make_unique<TestTensor<int32_t>>(token, Shape{count()});
  }
  int64_t count() const { return offsets.back(); }
  int64_t groups() const { return static_cast<int64_t>(offsets.size()) - 1; }
  cuda::RowGroups row_groups() const { return {*device_offsets, count()}; }
};

/// Float32 sums on tensor cores may lose 2^-22 of the magnitudes so far at each addition; then one rounding.
void expect_sum(float got, double sum, double magnitude, int64_t terms, double rounding, int64_t at) {
  const double bound = static_cast<double>(terms + 1) * 0x1p-22 * magnitude + rounding * std::abs(sum);
  if (!(std::abs(got - sum) <= bound)) ADD_FAILURE() << at << ": got " << got << ", want " << sum << " +- " << bound;
}

struct OnDevice {
  ThreadPool pool{1};
  TestStream stream{pool};
  Arena arena{testing::test_device(), "scratch"};
  Context context{stream, arena};

  /// Runs the op twice and expects the same bytes.
  template <class Args>
  void run(void (*op)(const Context&, const Args&), const Args& args, std::vector<Output*> outputs) {
    ASSERT_TRUE(cuda::hopper_can_run(context, args) || cuda::sm80_can_run(context, args));
    arena.begin_dry();
    op(context, args);
    arena.reserve(arena.high_water());
    op(context, args);
    stream.synchronize();
    for (Output* output : outputs) {
      const std::vector<std::byte> before = output->bytes();
      output->clear();
      op(context, args);
      stream.synchronize();
      EXPECT_EQ(before, output->bytes()) << "not repeatable";
    }
  }
};

class GroupedGemmTensorCores : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::test_device().kind != DeviceKind::kCuda) GTEST_SKIP() << "products of a GPU";
    ThreadPool pool(1);
    TestStream stream(pool);
    Arena scratch(testing::test_device(), "scratch");
    if (cuda::kernel_tiers({stream, scratch}).grouped_gemm == cuda::Tier::kGeneral) GTEST_SKIP() << "tensor cores";
  }
};

/// Borders of MMAs (64), tiles (128) and pairs of tiles (256), groups without rows, and groups with many tiles.
const std::vector<int64_t> kBorders = {0, 1, 63, 64, 65, 0, 127, 128, 129, 191, 192, 193, 255, 256, 257, 0, 900, 3};

struct ProductCase {
  std::vector<int64_t> rows;
  int64_t k, n, extra;
  bool gathered, transposed, activated;
};

void check_product(const ProductCase& c) {
  SCOPED_TRACE(::testing::Message() << "K " << c.k << " N " << c.n << " J " << c.extra
                                    << (c.gathered ? " gathered" : "") << (c.transposed ? " transposed" : "")
                                    << (c.activated ? " activated" : ""));
  const TokenRows rows(c.rows);
  const int64_t groups = rows.groups(), count = rows.count();
  const Factor a({c.gathered ? rows.tokens : count, c.k}, 1);
  const Factor w(c.transposed ? Shape{groups, c.k, c.n} : Shape{groups, c.n, c.k}, 2, 0.1);
  const Factor extra_a({count, c.extra}, 3), extra_w({groups, c.n, c.extra}, 4, 0.1);
  Output product({count, c.n}, DType::kBF16), activation({count, c.n / 2}, DType::kBF16);
  std::vector<Output*> outputs{&product};
  if (c.activated) outputs.push_back(&activation);
  OnDevice on;
  on.run<cuda::GroupedGemmArgs>(&cuda::grouped_gemm,
                                {.groups = rows.row_groups(),
                                 .a = a.tensor(),
                                 .a_rows = c.gathered ? rows.device_token->tensor() : Tensor{},
                                 .w = w.tensor(),
                                 .w_transposed = c.transposed,
                                 .extra_a = extra_a.tensor(),
                                 .extra_w = extra_w.tensor(),
                                 .c = product.tensor(),
                                 .activation = c.activated ? activation.tensor() : Tensor{}},
                                outputs);
  const std::vector<float> got = product.floats();
  const std::vector<float> activated = c.activated ? activation.floats() : std::vector<float>{};
  // Checking every element would take long; these positions cover each tile, row by row at its borders.
  for (int64_t r = 0; r < count; ++r) {
    const int64_t e = rows.group[static_cast<size_t>(r)], in_group = r - rows.offsets[static_cast<size_t>(e)];
    const int64_t from = c.gathered ? rows.token[static_cast<size_t>(r)] : r;
    for (int64_t n = (in_group + 1) % 64 < 2 ? 0 : r % 13; n < c.n; n += (in_group + 1) % 64 < 2 ? 1 : 13) {
      double sum = 0, magnitude = 0;
      const auto add = [&](float x, float y) {
        sum += static_cast<double>(x) * y;
        magnitude += std::abs(static_cast<double>(x) * y);
      };
      for (int64_t k = 0; k < c.k; ++k) {
        add(a[from * c.k + k], w[c.transposed ? (e * c.k + k) * c.n + n : (e * c.n + n) * c.k + k]);
      }
      for (int64_t j = 0; j < c.extra; ++j) add(extra_a[r * c.extra + j], extra_w[(e * c.n + n) * c.extra + j]);
      expect_sum(got[static_cast<size_t>(r * c.n + n)], sum, magnitude, c.k + c.extra, 0x1.01p-8, r * c.n + n);
    }
    if (!c.activated) continue;
    for (int64_t i = 0; i < c.n / 2; ++i) {
      const double gate = got[static_cast<size_t>(r * c.n + i)], up = got[static_cast<size_t>(r * c.n + c.n / 2 + i)];
      const double want = gate / (1 + std::exp(-gate)) * up, value = activated[static_cast<size_t>(r * c.n / 2 + i)];
      // One rounding, and the approximate exponential.
      if (!(std::abs(value - want) <= 0x1.02p-8 * std::abs(want) + 1e-30)) {
        ADD_FAILURE() << "activation " << r << ", " << i << ": got " << value << ", want " << want;
      }
    }
  }
}

TEST_F(GroupedGemmTensorCores, TilesOfManyGroupsShareTheBlocks) {
  for (bool gathered : {false, true}) {
    for (bool transposed : {false, true}) {
      check_product({kBorders, 72, 1608, 0, gathered, transposed, false});
      check_product({kBorders, 8, 200, 16, gathered, transposed, false});
      check_product({kBorders, 456, 64, 128, gathered, transposed, false});
    }
    check_product({kBorders, 72, 1616, 0, gathered, false, true});
    check_product({kBorders, 136, 432, 64, gathered, false, true});
  }
}

TEST_F(GroupedGemmTensorCores, OneGroupTakesAllRowsOrNone) {
  check_product({{0, 0, 2900, 0}, 64, 776, 8, true, false, false});
  check_product({{2900}, 128, 384, 0, false, true, false});
  check_product({std::vector<int64_t>(300, 1), 200, 144, 32, true, false, true});
  check_product({{0, 0, 0}, 64, 64, 0, false, false, false});
}

TEST_F(GroupedGemmTensorCores, GradientsOfActivationsMeetEveryTile) {
  for (const auto& [k, width, extra] : {std::array<int64_t, 3>{72, 1208, 0}, {200, 456, 16}, {8, 72, 64}}) {
    SCOPED_TRACE(::testing::Message() << "H " << k << " I " << width << " J " << extra);
    const TokenRows rows(kBorders);
    const int64_t groups = rows.groups(), count = rows.count();
    std::vector<int32_t> choices(static_cast<size_t>(count));
    std::iota(choices.rbegin(), choices.rend(), 0);
    const TestTensor<int32_t> assignment(choices, {count});
    const Factor dout({rows.tokens, k}, 1), w({groups, k, width}, 2, 0.1), h({count, 2 * width}, 3);
    const Factor weights({count, 1}, 4), extra_a({count, extra}, 5), extra_w({groups, width, extra}, 6, 0.1);
    Output dh({count, 2 * width}, DType::kBF16), scaled({count, width}, DType::kBF16),
        dweights({count, 1}, DType::kF32);
    OnDevice on;
    on.run<cuda::GroupedDswigluArgs>(&cuda::grouped_dswiglu,
                                     {.groups = rows.row_groups(),
                                      .token = *rows.device_token,
                                      .assignment = assignment,
                                      .dout = dout.tensor(),
                                      .w = w.tensor(),
                                      .extra_a = extra_a.tensor(),
                                      .extra_w = extra_w.tensor(),
                                      .h = h.tensor(),
                                      .weights = weights.tensor(),
                                      .dh = dh.tensor(),
                                      .scaled_act = scaled.tensor(),
                                      .dweights = dweights.tensor()},
                                     {&dh, &scaled, &dweights});
    const std::vector<float> got = dh.floats(), got_scaled = scaled.floats(), got_dots = dweights.floats();
    for (int64_t r = 0; r < count; ++r) {
      const int64_t e = rows.group[static_cast<size_t>(r)], in_group = r - rows.offsets[static_cast<size_t>(e)];
      const int64_t token = rows.token[static_cast<size_t>(r)], choice = choices[static_cast<size_t>(r)];
      if ((in_group + 1) % 64 >= 2 && r % 5 != 0) continue;
      double dot = 0, dot_bound = 0;
      for (int64_t i = 0; i < width; ++i) {
        double dact = 0, magnitude = 0;
        const auto add = [&](float x, float y) {
          dact += static_cast<double>(x) * y;
          magnitude += std::abs(static_cast<double>(x) * y);
        };
        for (int64_t n = 0; n < k; ++n) add(dout[token * k + n], w[(e * k + n) * width + i]);
        for (int64_t j = 0; j < extra; ++j) add(extra_a[r * extra + j], extra_w[(e * width + i) * extra + j]);
        const double dact_error = static_cast<double>(k + extra + 1) * 0x1p-22 * magnitude;
        const double gate = h[r * 2 * width + i], up = h[r * 2 * width + width + i];
        const double sigmoid = 1 / (1 + std::exp(-gate)), silu = gate * sigmoid, act = silu * up,
                     scale = weights[choice];
        const auto expect = [&](double value, double want, double factor, const char* what) {
          // One rounding, the approximate exponential in the factor (a slope is a sum of terms up to 1 + |gate|), and
          // the sum.
          const double bound = 0x1.02p-8 * std::abs(want) + std::abs(scale) * dact_error * factor +
                               0x1p-17 * std::abs(scale * dact * up) * (1 + std::abs(gate)) + 1e-30;
          if (!(std::abs(value - want) <= bound)) {
            ADD_FAILURE() << what << " " << r << ", " << i << ": got " << value << ", want " << want << " +- " << bound;
          }
        };
        const double slope = sigmoid * (1 + gate * (1 - sigmoid));
        expect(got[static_cast<size_t>(r * 2 * width + i)], scale * dact * up * slope, std::abs(up * slope), "dgate");
        expect(got[static_cast<size_t>(r * 2 * width + width + i)], scale * dact * silu, std::abs(silu), "dup");
        expect(got_scaled[static_cast<size_t>(r * width + i)], scale * act, 0, "scaled activation");
        dot += dact * act;
        dot_bound +=
            std::abs(act) * dact_error + (0x1p-17 + static_cast<double>(width) * 0x1p-23) * std::abs(dact * act);
      }
      const double value = got_dots[static_cast<size_t>(choice)];
      if (!(std::abs(value - dot) <= dot_bound)) {
        ADD_FAILURE() << "dweights " << r << ": got " << value << ", want " << dot << " +- " << dot_bound;
      }
    }
  }
}

void check_weight_gradient(const std::vector<int64_t>& counts, int64_t m, int64_t n, bool a_gathered, bool b_gathered) {
  SCOPED_TRACE(::testing::Message() << "M " << m << " N " << n << (a_gathered ? " a gathered" : "")
                                    << (b_gathered ? " b gathered" : ""));
  const TokenRows rows(counts);
  const int64_t groups = rows.groups();
  const Factor a({a_gathered ? rows.tokens : rows.count(), m}, 1), b({b_gathered ? rows.tokens : rows.count(), n}, 2);
  Output dw({groups, m, n}, DType::kF32);
  cuda::GroupedWgradArgs args{.groups = rows.row_groups(),
                              .a = a.tensor(),
                              .a_rows = a_gathered ? rows.device_token->tensor() : Tensor{},
                              .b = b.tensor(),
                              .b_rows = b_gathered ? rows.device_token->tensor() : Tensor{},
                              .dw = {dw.tensor()}};
  OnDevice on;
  on.run<cuda::GroupedWgradArgs>(&cuda::grouped_wgrad, args, {&dw});
  const std::vector<float> once = dw.floats();
  Output narrow({groups, m, n}, DType::kBF16);
  args.dw = {narrow.tensor()};
  on.run<cuda::GroupedWgradArgs>(&cuda::grouped_wgrad, args, {&narrow});
  const std::vector<float> rounded = narrow.floats();
  args.dw = {dw.tensor(), 1.0f};
  cuda::grouped_wgrad(on.context, args);
  on.stream.synchronize();
  const std::vector<float> twice = dw.floats();
  for (int64_t e = 0; e < groups; ++e) {
    for (int64_t i = e % 7; i < m * n; i += 7) {
      double sum = 0, magnitude = 0;
      const int64_t begin = rows.offsets[static_cast<size_t>(e)], end = rows.offsets[static_cast<size_t>(e) + 1];
      for (int64_t r = begin; r < end; ++r) {
        const int64_t token = rows.token[static_cast<size_t>(r)];
        const double product =
            static_cast<double>(a[(a_gathered ? token : r) * m + i / n]) * b[(b_gathered ? token : r) * n + i % n];
        sum += product;
        magnitude += std::abs(product);
      }
      const auto at = static_cast<size_t>(e * m * n + i);
      expect_sum(once[at], sum, magnitude, end - begin, 0x1p-23, static_cast<int64_t>(at));
      // Adding the same sum again is exact.
      EXPECT_EQ(twice[at], 2 * once[at]);
      EXPECT_EQ(rounded[at], static_cast<float>(BFloat16(once[at])));
    }
  }
}

TEST_F(GroupedGemmTensorCores, GradientsOfWeightsLeaveOutTheNextGroup) {
  const std::vector<int64_t> counts = {0, 1, 15, 16, 17, 63, 64, 65, 0, 127, 128, 129, 500, 0};
  for (const auto& [a_gathered, b_gathered] : {std::pair{false, false}, {true, false}, {false, true}}) {
    check_weight_gradient(counts, 392, 200, a_gathered, b_gathered);
    check_weight_gradient(counts, 64, 776, a_gathered, b_gathered);
    check_weight_gradient(counts, 8, 16, a_gathered, b_gathered);
    check_weight_gradient(std::vector<int64_t>(90, 2), 264, 136, a_gathered, b_gathered);
  }
  check_weight_gradient({0, 0}, 64, 200, false, false);
}

}  // namespace
}  // namespace hone

#endif
