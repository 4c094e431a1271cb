// A body in tiles of rows, here an MLP: the bits of its result and of x's gradient are those of all rows at once.
#include "ops/row_tiles/row_tiles.h"

#include <algorithm>
#include <cmath>

#include "core/cpu/isa_testing.h"
#include "kernels/op_testing.h"
#include "ops/dora/dora.h"
#include "ops/mlp_activation/mlp_activation.h"

namespace hone {
namespace {

using testing::Argument;
using testing::OpCase;
using testing::OpResult;
using testing::Values;

constexpr MlpActivation kSwiglu{}, kGeglu{MlpActivation::Kind::kGeglu}, kSquaredRelu{MlpActivation::Kind::kSquaredRelu};
constexpr int64_t kRank = 3;

/// A weight whose products are in 8-bit floats.
struct InFp8 : Weight {
  Weight& of;
  Fp8Recipe recipe;

  InFp8(Weight& weight, Fp8Recipe of_products) : of(weight), recipe(of_products) {}
  const Shape& shape() const override { return of.shape(); }
  WeightView view() const override { return of.view(); }
  Fp8Products fp8() const override { return {.recipe = recipe}; }
  bool wants_grad() const override { return of.wants_grad(); }
  GradDest grad() override { return of.grad(); }
};

enum class Adapters { kNone, kLora, kDora };

struct Mlp {
  int64_t tokens, hidden, width;
  MlpActivation function = kSwiglu;
  bool biases = false;
  Adapters adapters = Adapters::kNone;
  float dropout = 0;
  bool x_trained = true, base_trained = true;
};

/// Rows of one sample, in device memory.
struct Rows {
  testing::TestStruct<StepScalars> scalars;
  std::vector<int64_t> samples;
  std::vector<int32_t> positions;
  std::unique_ptr<testing::TestTensor<int64_t>> sample_ids;
  std::unique_ptr<testing::TestTensor<int32_t>> position_ids;

  explicit Rows(int64_t tokens) {
    for (int64_t t = 0; t < tokens; ++t) {
      samples.push_back(5 + t / 7);
      positions.push_back(static_cast<int32_t>(t % 7));
    }
    sample_ids = std::make_unique<testing::TestTensor<int64_t>>(samples, Shape{tokens});
    position_ids = std::make_unique<testing::TestTensor<int32_t>>(positions, Shape{tokens});
  }
  LoraDropoutContext of(const RowRange& rows) const {
    return {.scalars = scalars.get(), .sample_ids = rows.of(*sample_ids), .positions = rows.of(*position_ids)};
  }
};

/// One weight of the MLP with what goes with it, from the arguments of a case in their order.
struct Layer {
  int64_t out = 0, in = 0;
  Adapter adapter = {};
};

/// down(f(gate x, up x)), or down(f(up x)) without a gate; `tile` 0: without tiles. Weights of each layer: w, then its
/// bias, A, B and the magnitude, as there are.
OpCase mlp_case(const Mlp& mlp, int64_t tile) {
  OpCase result;
  result.inputs = {testing::random_argument({mlp.tokens, mlp.hidden}, 1, 1.0, mlp.x_trained)};
  const auto layers = std::make_shared<std::vector<Layer>>();
  for (int i = mlp.function.gated() ? 0 : 1; i < 2; ++i) layers->push_back({mlp.width, mlp.hidden});
  layers->push_back({mlp.hidden, mlp.width});
  uint64_t key = 2;
  for (Layer& layer : *layers) {
    const double scale = 1 / std::sqrt(static_cast<double>(layer.in));
    const auto add = [&](Shape shape, double size, bool trained = true) {
      result.weights.push_back(testing::random_argument(shape, key++, size, trained));
    };
    layer.adapter = {.scaling = 0.5f, .dropout = mlp.dropout, .stream_id = static_cast<uint32_t>(key)};
    add({layer.out, layer.in}, scale, mlp.base_trained);
    if (mlp.biases) add({layer.out}, 1);
    if (mlp.adapters == Adapters::kNone) continue;
    add({kRank, layer.in}, scale);
    add({layer.out, kRank}, 1);
    if (mlp.adapters == Adapters::kDora) add({layer.out}, 1);
  }
  const auto rows_of = std::make_shared<Rows>(mlp.tokens);
  result.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& weights) {
    const RowBody body = [=](Tape& on, Var x, const RowRange& rows) {
      auto next = weights.begin();
      const auto product = [&](Layer& layer, Var of) {
        Weight& w = **next++;
        Weight* const bias = mlp.biases ? *next++ : nullptr;
        if (mlp.adapters == Adapters::kNone) return linear(on, of, w, bias);
        layer.adapter.lora_a = *next++;
        layer.adapter.lora_b = *next++;
        if (mlp.adapters == Adapters::kLora) return linear(on, of, w, bias, &layer.adapter, rows_of->of(rows));
        layer.adapter.magnitude = *next++;
        return dora_linear(on, of, w, bias, layer.adapter, rows_of->of(rows));
      };
      const Var first = product(layers->front(), x);
      const Var activated = mlp.function.gated() ? mlp_activation(on, mlp.function, first, product((*layers)[1], x))
                                                 : mlp_activation(on, mlp.function, first);
      return product(layers->back(), activated);
    };
    if (tile == 0) return std::vector<Var>{body(tape, in[0], {0, mlp.tokens})};
    return std::vector<Var>{row_tiles(tape, in[0], {.kind = "mlp", .body = body}, tile)};
  };
  // For a frozen or trained MLP with SwiGLU, without adapters.
  result.reference = [=](const std::vector<Values>& a) {
    const auto product = [](const Values& x, const Values& w, int64_t in) {
      const auto k = static_cast<size_t>(in);
      Values y;
      for (size_t row = 0; row < x.size(); row += k) {
        for (size_t out = 0; out < w.size(); out += k) {
          double sum = 0;
          for (size_t i = 0; i < k; ++i) sum += x[row + i] * w[out + i];
          y.push_back(sum);
        }
      }
      return y;
    };
    Values y = product(a[0], a[1], mlp.hidden);
    const Values up = product(a[0], a[2], mlp.hidden);
    for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] / (1 + std::exp(-y[i])) * up[i];
    return std::vector<Values>{product(y, a[3], mlp.width)};
  };
  return result;
}

double largest_of(const Values& values) {
  double largest = 1;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

void expect_close(const Values& got, const Values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  const double bound = tolerance * largest_of(want);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << i;
}

/// On a CPU the same bits. On a GPU a product of other rows may have another kernel (ops/linear): sums of few terms in
/// another order and, in bfloat16, some roundings of 2^-8 that go the other way.
void expect_same(const Values& got, const Values& want, DType dtype) {
  if (testing::test_device().kind == DeviceKind::kCpu) {
    EXPECT_EQ(got, want);
  } else {
    expect_close(got, want, dtype == DType::kF32 ? 1e-5 : 4 * 0x1p-8);
  }
}

void expect_bits_of_all_at_once(const Mlp& mlp) {
  const bool gpu = testing::test_device().kind != DeviceKind::kCpu;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const OpResult want = run_op(mlp_case(mlp, 0), {.dtype = dtype});
    for (const int64_t tile : {int64_t{1}, int64_t{3}, mlp.tokens / 2 + 1, mlp.tokens, 4 * mlp.tokens}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << ", " << mlp.tokens << " rows in tiles of " << tile);
      const OpCase tiled = mlp_case(mlp, tile);
      const OpResult got = run_op(tiled, {.dtype = dtype});
      expect_same(got.outputs[0], want.outputs[0], dtype);
      ASSERT_EQ(got.gradients.size(), want.gradients.size());
      for (size_t i = 0; i < got.gradients.size(); ++i) {
        if (i == 0 || tile >= mlp.tokens || (gpu && dtype == DType::kBF16)) {
          expect_same(got.gradients[i], want.gradients[i], dtype);
        } else {  // sums of so many products, whose order alone differs
          expect_close(got.gradients[i], want.gradients[i], static_cast<double>(mlp.tokens) * 0x1p-24);
        }
      }
      const OpResult again = run_op(tiled, {.dtype = dtype, .recompute = true, .threads = 3});
      EXPECT_EQ(again.outputs, got.outputs);
      EXPECT_EQ(again.gradients, got.gradients);
    }
  }
}

TEST(RowTiles, HaveTheBitsOfAllRowsAtOnce) {
  expect_bits_of_all_at_once({41, 24, 40});
  expect_bits_of_all_at_once({1, 5, 3});
  expect_bits_of_all_at_once({600, 64, 96});
  expect_bits_of_all_at_once({23, 16, 24, kGeglu, true});
  expect_bits_of_all_at_once({23, 16, 24, kSquaredRelu});
  expect_bits_of_all_at_once({.tokens = 23, .hidden = 16, .width = 24, .x_trained = false});
}

TEST(RowTiles, HaveTheSameBitsWithAdapters) {
  for (const Isa isa : supported_isas()) {
    const ForcedIsa forced(isa);
    for (const Adapters adapters : {Adapters::kLora, Adapters::kDora}) {
      expect_bits_of_all_at_once(
          {.tokens = 41, .hidden = 32, .width = 64, .adapters = adapters, .base_trained = false});
      expect_bits_of_all_at_once({.tokens = 41,
                                  .hidden = 32,
                                  .width = 64,
                                  .biases = true,
                                  .adapters = adapters,
                                  .dropout = 0.25f,
                                  .base_trained = false});
    }
  }
}

/// A scale is of a row, or of a part of one; one of all rows (tensorwise) is of a tile's.
TEST(RowTiles, HaveTheSameBitsInEightBitFloats) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kRowwise, Fp8Recipe::kBlockwise}) {
    const auto in_fp8 = [&](int64_t tile) {
      OpCase result = mlp_case({.tokens = 150, .hidden = 128, .width = 256, .base_trained = false}, tile);
      const auto op = result.op;
      const auto held = std::make_shared<std::vector<std::unique_ptr<InFp8>>>();
      result.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& weights) {
        std::vector<Weight*> rounded;
        for (Weight* weight : weights) {
          held->push_back(std::make_unique<InFp8>(*weight, recipe));
          rounded.push_back(held->back().get());
        }
        return op(tape, in, rounded);
      };
      return result;
    };
    const OpResult want = run_op(in_fp8(0), {.dtype = DType::kBF16});
    for (const int64_t tile : {1, 64, 149}) {
      const OpResult got = run_op(in_fp8(tile), {.dtype = DType::kBF16});
      SCOPED_TRACE(tile);
      expect_same(got.outputs[0], want.outputs[0], DType::kBF16);
      expect_same(got.gradients[0], want.gradients[0], DType::kBF16);
    }
  }
}

TEST(RowTiles, MatchTheReference) {
  for (const int64_t tile : {1, 3, 7}) {
    expect_matches_reference(mlp_case({7, 5, 6}, tile), DType::kF32, 2e-5);
    // Seven roundings on the way to a gradient, each of a value of about the largest.
    expect_matches_reference(mlp_case({7, 5, 6}, tile), DType::kBF16, 7 * 0x1p-8);
  }
}

/// x is used beside the body, so that a tile adds to its gradient.
TEST(RowTiles, AddToAGradientThatIsThere) {
  const Mlp mlp{11, 8, 12};
  const auto twice = [&](int64_t tile) {
    OpCase one = mlp_case(mlp, tile);
    const auto op = one.op;
    one.op = [op](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& weights) {
      return std::vector<Var>{op(tape, in, weights)[0], op(tape, in, weights)[0]};
    };
    return one;
  };
  const OpResult want = run_op(twice(0), {}), got = run_op(twice(4), {});
  for (size_t i = 0; i < 2; ++i) expect_same(got.outputs[i], want.outputs[i], DType::kF32);
  expect_same(got.gradients[0], want.gradients[0], DType::kF32);
}

TEST(RowTiles, TakeTheMemoryOfATile) {
  constexpr int64_t kTokens = 4096, kHidden = 8, kWidth = 64;
  const auto block_bytes = [&](int64_t tile) {
    const OpCase op_case = mlp_case({.tokens = kTokens, .hidden = kHidden, .width = kWidth}, tile);
    std::vector<std::unique_ptr<testing::TestWeight>> weights;
    std::vector<Weight*> pointers;
    for (const Argument& argument : op_case.weights) {
      weights.push_back(std::make_unique<testing::TestWeight>(argument, DType::kF32));
      pointers.push_back(weights.back().get());
    }
    ThreadPool pool(1);
    testing::TestStream stream(pool);
    TapeMemory memory{testing::test_device()};
    TapePlan plan;
    const Buffer x(testing::test_device(), kTokens * kHidden * 4);
    for (int pass = 0; pass < 2; ++pass) {
      memory.begin_dry();
      Tape tape(Context(stream, memory.scratch), memory, plan,
                {.training = true, .recompute = {.level = RecomputeLevel::kEverything}});
      const Tensor rows = x.tensor({kTokens, kHidden}, DType::kF32);
      tape.block([&] { op_case.op(tape, {tape.input(rows)}, pointers); });
    }
    return static_cast<int64_t>(memory.block.high_water());
  };
  // Gate, up, the activation and the result of a tile, and the result of all.
  EXPECT_EQ(block_bytes(256), 256 * (3 * kWidth + kHidden) * 4 + kTokens * kHidden * 4);
  EXPECT_EQ(block_bytes(0), kTokens * (3 * kWidth + kHidden) * 4);
}

}  // namespace
}  // namespace hone
