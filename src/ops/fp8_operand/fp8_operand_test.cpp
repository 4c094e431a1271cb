#include "ops/fp8_operand/fp8_operand.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "formats/fp8_names.h"
#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;
using testing::TestTensor;

constexpr Fp8Recipe kRecipes[] = {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise, Fp8Recipe::kBlockwise};

/// Operands on the device under test, and what the definitions in the header make of the same numbers.
class Fp8OperandTest : public ::testing::Test {
 protected:
  Fp8OperandTest() : pool_(2), stream_(pool_), scratch_(test_device(), "scratch"), context_(stream_, scratch_) {
    scratch_.reserve(size_t{8} << 20);
  }

  static std::vector<float> random(int64_t count, uint64_t key) {
    PhiloxSequence sequence(key);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = sequence.normal();
    return values;
  }

  static int64_t blocks(int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

  /// The scales of [rows, k] numbers in groups of `down` by `across`, row by row.
  static std::vector<Fp8Scale> scales_of(const std::vector<float>& values, int64_t rows, int64_t k, int64_t down,
                                         int64_t across, Fp8Code code) {
    const int64_t columns = (k + across - 1) / across;
    std::vector<float> largest(static_cast<size_t>((rows + down - 1) / down * columns), 0.0f);
    for (int64_t i = 0; i < rows * k; ++i) {
      float& of_group = largest[static_cast<size_t>(i / k / down * columns + i % k / across)];
      of_group = std::max(of_group, std::fabs(values[static_cast<size_t>(i)]));
    }
    std::vector<Fp8Scale> scales;
    for (const float magnitude : largest) scales.push_back(fp8_scale(std::bit_cast<uint32_t>(magnitude), code));
    return scales;
  }

  static uint8_t code_of(float value, Fp8Code code) {
    return code == Fp8Code::kE4m3 ? e4m3_code(value) : e5m2_code(value);
  }

  template <class T>
  std::vector<T> host(const Tensor& tensor) {
    return stream_.download<T>(tensor);
  }

  /// Rows of activations, with `padding` rows after them.
  template <class T>
  void expect_rows(Fp8Recipe recipe, int64_t count, int64_t k, int64_t padding, bool with_factors, Fp8Code code) {
    SCOPED_TRACE(::testing::Message() << name_of(recipe) << " " << count << " x " << k << " factors " << with_factors);
    std::vector<float> values = random(count * k, 3);
    std::vector<T> stored;
    for (const float value : values) stored.emplace_back(value);
    std::vector<float> factors = random(k, 4);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(stored[i]) * (with_factors ? factors[i % static_cast<size_t>(k)] : 1.0f);
    }
    const TestTensor<T> x(stored, {count, k});
    const TestTensor<float> factor(factors, {k});
    ArenaScope scope(scratch_);
    const Fp8Operand to = take_fp8_rows(scope, recipe, count + padding, k, code);
    fp8_rows(context_, {.recipe = recipe, .x = x, .factors = with_factors ? factor.tensor() : Tensor{}, .to = to});

    const bool whole = recipe == Fp8Recipe::kTensorwise;
    const int64_t across = recipe == Fp8Recipe::kBlockwise ? kFp8Block : k, groups = blocks(k);
    const std::vector<Fp8Scale> want = scales_of(values, count, k, whole ? count : 1, across, code);
    const std::vector<uint8_t> codes = host<uint8_t>(to.codes);
    const std::vector<float> scales = host<float>(to.scales);
    for (int64_t row = 0; row < count + padding; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const auto at = static_cast<size_t>(row * k + i);
        if (row >= count) {
          ASSERT_EQ(codes[at], 0);
          continue;
        }
        const int64_t group = whole ? 0 : recipe == Fp8Recipe::kRowwise ? row : row * groups + i / kFp8Block;
        const Fp8Scale& scale = want[static_cast<size_t>(group)];
        ASSERT_EQ(codes[at], code_of(values[at] * scale.inverse, code)) << row << ", " << i;
        const int64_t stored_at = whole                           ? 0
                                  : recipe == Fp8Recipe::kRowwise ? row
                                                                  : i / kFp8Block * (count + padding) + row;
        ASSERT_EQ(scales[static_cast<size_t>(stored_at)], scale.scale) << row << ", " << i;
      }
    }
  }

  /// Columns beside the rows of the transposed matrix, whose last columns are zeros.
  template <class T>
  void expect_columns(Fp8Recipe recipe, int64_t tokens, int64_t k, Fp8Code code) {
    SCOPED_TRACE(::testing::Message() << name_of(recipe) << " " << tokens << " x " << k);
    const int64_t padded = (tokens + kFp8Unit - 1) / kFp8Unit * kFp8Unit;
    const std::vector<float> values = random(tokens * k, 9);
    std::vector<T> stored, transposed(static_cast<size_t>(k * padded), T(0.0f));
    for (const float value : values) stored.emplace_back(value);
    for (int64_t i = 0; i < tokens * k; ++i) {
      transposed[static_cast<size_t>(i % k * padded + i / k)] = stored[static_cast<size_t>(i)];
    }
    const TestTensor<T> x(stored, {tokens, k}), rows(transposed, {k, padded});
    ArenaScope scope(scratch_);
    const Fp8Operand of_columns = take_fp8_rows(scope, recipe, k, padded, code);
    const Fp8Operand of_rows = take_fp8_rows(scope, recipe, k, padded, code);
    fp8_columns(context_, {.recipe = recipe, .x = x, .to = of_columns});
    fp8_rows(context_, {.recipe = recipe, .x = rows, .to = of_rows});
    EXPECT_EQ(host<uint8_t>(of_columns.codes), host<uint8_t>(of_rows.codes));
    EXPECT_EQ(host<float>(of_columns.scales), host<float>(of_rows.scales));
  }

  /// A weight as an operand beside its definition.
  void expect_weight(Fp8Recipe recipe, int64_t n, int64_t k, bool transposed, const WeightView& view,
                     const std::vector<uint8_t>& want_codes, const std::vector<float>& want_scales) {
    ArenaScope scope(scratch_);
    const Fp8Operand to = take_fp8_weight(scope, recipe, {n, k}, transposed);
    const bool rows = recipe == Fp8Recipe::kRowwise, blockwise = recipe == Fp8Recipe::kBlockwise;
    const Tensor factors = transposed && rows ? scope.take({n}, DType::kF32) : Tensor{};
    fp8_weight(context_, {.recipe = recipe, .w = view, .transposed = transposed, .to = to, .factors = factors});
    const std::vector<uint8_t> codes = host<uint8_t>(to.codes);
    const std::vector<float> scales = host<float>(factors.defined() ? factors : to.scales);
    const int64_t across = blocks(k);
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(codes[static_cast<size_t>(transposed ? i * n + row : row * k + i)],
                  want_codes[static_cast<size_t>(row * k + i)])
            << row << ", " << i;
      }
    }
    for (int64_t group = 0; group < static_cast<int64_t>(want_scales.size()); ++group) {
      int64_t at = group;
      if (blockwise) {
        const int64_t pitch = to.scales.shape[1], row = group / across, column = group % across;
        at = transposed ? column * pitch + row : row * pitch + column;
      }
      ASSERT_EQ(scales[static_cast<size_t>(at)], want_scales[static_cast<size_t>(group)]) << group;
    }
    if (!factors.defined()) return;
    for (const float one : host<float>(to.scales)) ASSERT_EQ(one, 1.0f);
  }

  template <class T>
  void expect_dense_weight(Fp8Recipe recipe, int64_t n, int64_t k, bool transposed) {
    SCOPED_TRACE(::testing::Message() << name_of(recipe) << " " << n << " x " << k << " transposed " << transposed);
    std::vector<T> stored;
    std::vector<float> values;
    for (const float value : random(n * k, 5)) {
      stored.emplace_back(0.02f * value);
      values.push_back(static_cast<float>(stored.back()));
    }
    const bool whole = recipe == Fp8Recipe::kTensorwise, blockwise = recipe == Fp8Recipe::kBlockwise;
    const int64_t down = whole ? n : blockwise ? kFp8Block : 1, across = blockwise ? kFp8Block : k;
    const std::vector<Fp8Scale> groups = scales_of(values, n, k, down, across, Fp8Code::kE4m3);
    const int64_t columns = (k + across - 1) / across;
    std::vector<uint8_t> codes;
    for (int64_t i = 0; i < n * k; ++i) {
      const Fp8Scale& scale = groups[static_cast<size_t>(i / k / down * columns + i % k / across)];
      codes.push_back(e4m3_code(values[static_cast<size_t>(i)] * scale.inverse));
    }
    std::vector<float> scales;
    for (const Fp8Scale& scale : groups) scales.push_back(scale.scale);
    const TestTensor<T> w(stored, {n, k});
    expect_weight(recipe, n, k, transposed, {w.tensor()}, codes, scales);
  }

  /// A view of a packed weight as a product that reads its codes has it.
  void expect_packed_weight(const PackedFormat& format, Fp8Recipe recipe, int64_t n, int64_t k, bool transposed) {
    SCOPED_TRACE(::testing::Message() << format.name() << " " << n << " x " << k << " transposed " << transposed);
    const PackedLayout layout = format.layout(n, k);
    std::vector<uint8_t> chunk(static_cast<size_t>(layout.bytes));
    const std::vector<float> values = random(n * k, 6);
    format.pack(layout, values.data(), reinterpret_cast<std::byte*>(chunk.data()));
    const TestTensor<uint8_t> chunks(chunk, {1, layout.bytes});
    const WeightView view{.payload = {nullptr, DType::kBF16, {n, k}, test_device()},
                          .format = &format,
                          .packed = PackedWeight{layout, chunks, DType::kBF16, &format}};
    const std::vector<uint8_t> codes(chunk.begin(), chunk.begin() + n * k);
    std::vector<float> scales(static_cast<size_t>(recipe == Fp8Recipe::kRowwise ? n : blocks(n) * blocks(k)));
    std::copy_n(reinterpret_cast<const float*>(chunk.data() + layout.scales), scales.size(), scales.data());
    expect_weight(recipe, n, k, transposed, view, codes, scales);
    const std::optional<Fp8Operand> in_place = fp8_weight_in_place(recipe, view);
    ASSERT_EQ(in_place.has_value(), recipe == Fp8Recipe::kRowwise || blocks(k) % 4 == 0);
    if (!in_place) return;
    EXPECT_EQ(host<uint8_t>(in_place->codes), codes);
    EXPECT_EQ(host<float>(in_place->scales), scales);
  }

  ThreadPool pool_;
  TestStream stream_;
  Arena scratch_;
  Context context_;
};

TEST_F(Fp8OperandTest, RowsHaveTheCodesAndScalesOfTheirRecipe) {
  for (const Fp8Recipe recipe : kRecipes) {
    for (const auto& [count, k, padding] : {std::array<int64_t, 3>{1, 16, 0}, {7, 144, 9}, {33, 2176, 0}}) {
      for (const bool factors : {false, true}) {
        expect_rows<BFloat16>(recipe, count, k, padding, factors, Fp8Code::kE4m3);
        expect_rows<float>(recipe, count, k, padding, factors, Fp8Code::kE5m2);
      }
    }
  }
}

TEST_F(Fp8OperandTest, RowsOfGroupsAreMultipliedByTheFactorsOfTheirParts) {
  // Groups of 2, 0 and 3 rows, and a row of none; two parts of 32 columns; factors three floats apart.
  constexpr int64_t kRows = 6, kColumns = 64, kPitch = 3;
  const std::vector<int64_t> offsets = {0, 2, 2, 5};
  std::vector<float> scales(3 * 2 * kPitch, -1.0f);
  for (size_t i = 0; i < 6; ++i) scales[i * kPitch] = 0.5f + static_cast<float>(i);
  const std::vector<float> values = random(kRows * kColumns, 8);
  const TestTensor<float> x(values, {kRows, kColumns}), device_scales(scales, {static_cast<int64_t>(scales.size())});
  const TestTensor<int64_t> device_offsets(offsets, {4});
  ArenaScope scope(scratch_);
  const Fp8Operand to = take_fp8_rows(scope, Fp8Recipe::kRowwise, kRows, kColumns, Fp8Code::kE4m3);
  const Fp8GroupFactors factors{
      .offsets = device_offsets, .scales = device_scales.tensor().as<float>(), .pitch = kPitch, .parts = 2};
  fp8_rows(context_, {.recipe = Fp8Recipe::kRowwise, .x = x, .group_factors = factors, .to = to});
  constexpr int kGroups[kRows] = {0, 0, 2, 2, 2, -1};
  std::vector<float> want = values;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const int group = kGroups[i / kColumns];
    const int64_t part = i % kColumns / (kColumns / 2);
    if (group >= 0) want[static_cast<size_t>(i)] *= scales[static_cast<size_t>((group * 2 + part) * kPitch)];
  }
  const std::vector<Fp8Scale> groups = scales_of(want, kRows, kColumns, 1, kColumns, Fp8Code::kE4m3);
  const std::vector<uint8_t> codes = host<uint8_t>(to.codes);
  for (size_t i = 0; i < codes.size(); ++i) {
    ASSERT_EQ(codes[i], e4m3_code(want[i] * groups[i / kColumns].inverse)) << i;
  }
}

TEST_F(Fp8OperandTest, ColumnsAreTheRowsOfTheTransposedMatrix) {
  for (const Fp8Recipe recipe : kRecipes) {
    for (const auto& [tokens, k] : {std::array<int64_t, 2>{1, 16}, {37, 272}, {129, 144}, {1100, 256}}) {
      expect_columns<BFloat16>(recipe, tokens, k, Fp8Code::kE4m3);
      expect_columns<float>(recipe, tokens, k, Fp8Code::kE5m2);
    }
  }
}

TEST_F(Fp8OperandTest, WeightsHaveThemInBothOrders) {
  for (const Fp8Recipe recipe : kRecipes) {
    for (const auto& [n, k] : {std::array<int64_t, 2>{16, 16}, {144, 272}, {256, 512}}) {
      for (const bool transposed : {false, true}) {
        expect_dense_weight<BFloat16>(recipe, n, k, transposed);
        expect_dense_weight<float>(recipe, n, k, transposed);
      }
    }
  }
}

TEST_F(Fp8OperandTest, PackedWeightsKeepTheirCodes) {
  for (const auto& [n, k] : {std::array<int64_t, 2>{16, 16}, {144, 272}, {256, 512}}) {
    for (const bool transposed : {false, true}) {
      expect_packed_weight(fp8_format(), Fp8Recipe::kBlockwise, n, k, transposed);
      expect_packed_weight(fp8_rows_format(), Fp8Recipe::kRowwise, n, k, transposed);
    }
  }
}

TEST_F(Fp8OperandTest, AGroupThatIsNotFiniteHasNanAndLeavesTheOthersAlone) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(2 * 256, 1.0f);
    values[300] = bad;  // row 1, the first group
    const TestTensor<float> x(values, {2, 256});
    ArenaScope scope(scratch_);
    const Fp8Operand to = take_fp8_rows(scope, Fp8Recipe::kBlockwise, 2, 256, Fp8Code::kE4m3);
    fp8_rows(context_, {.recipe = Fp8Recipe::kBlockwise, .x = x, .to = to});
    const std::vector<float> scales = host<float>(to.scales);
    EXPECT_TRUE(std::isnan(scales[1]));
    for (const size_t good : {0u, 2u, 3u}) EXPECT_EQ(scales[good], 1.0f / 448.0f);
  }
}

}  // namespace
}  // namespace hone
