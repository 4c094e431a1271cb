// A bfloat16 y or dx is rounded once, from the float32 sum of its terms: an adapter's part far below half a unit of the
// result arrives on average, and no element is further off than half a unit of each sum that is rounded.
#include "core/cpu/thread_pool.h"
#include "formats/tiled_weights.h"
#include "kernels/cpu/gemm/gemm.h"
#include "ops/linear/linear.h"
#include "ops/rounding_testing.h"

namespace hone {
namespace {

using testing::ExactMatrix;
using testing::ExactProduct;
using testing::expect_rounded_once;
using testing::test_device;
using testing::Values;

struct RoundingCase {
  int64_t tokens = 208, in = 192, out = 256, rank = 8;
  float dropout = 0;
  bool bias = false;
  bool adds = false;   ///< dx is added to what is there
  bool tiles = false;  ///< W is in tiles
};

std::string name_of_case(const RoundingCase& c) {
  return std::to_string(c.tokens) + " tokens rank " + std::to_string(c.rank) + (c.dropout > 0 ? " dropout" : "") +
         (c.bias ? " bias" : "") + (c.adds ? " added" : "") + (c.tiles ? " tiles" : "");
}

void expect_rounds_once(const RoundingCase& c) {
  SCOPED_TRACE(name_of_case(c));
  const int64_t tokens = c.tokens, inputs = c.in, outputs = c.out;
  const float scaling = 0.5f;
  const DType bf16 = DType::kBF16, f32 = DType::kF32;
  const auto in = static_cast<double>(inputs), rank = static_cast<double>(c.rank);
  const ExactMatrix x(tokens, inputs, bf16, 1), dy(tokens, outputs, bf16, 2), bias(1, outputs, bf16, 3);
  const ExactMatrix w(outputs, inputs, bf16, 4, 1 / std::sqrt(in)), a(c.rank, inputs, f32, 5, 1 / std::sqrt(in));
  const ExactMatrix b(outputs, c.rank, f32, 6, 1e-3 / std::sqrt(rank));
  const ExactMatrix before(tokens, inputs, bf16, 7);
  const ExactMatrix y(tokens, outputs, bf16, 8), xa(tokens, c.rank, f32, 9), dxa(tokens, c.rank, f32, 10);

  std::vector<int64_t> samples;
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < tokens; ++t) {
    samples.push_back(t / 9);
    positions.push_back(static_cast<int32_t>(t % 9));
  }
  const testing::TestTensor<int64_t> sample_ids(samples, {tokens});
  const testing::TestTensor<int32_t> position_ids(positions, {tokens});
  StepScalars step;
  step.seed = 5;
  const testing::TestStruct<StepScalars> scalars(step);
  const LoraDropout drops{c.dropout, 3, {scalars.get(), sample_ids, position_ids}};
  const uint64_t key = lora_dropout_key(step.seed, drops.stream_id);

  ThreadPool pool(2);
  testing::TestStream stream(pool);
  Arena scratch(test_device(), "scratch");
  const Context context(stream, scratch);
  const WeightView weight{w.tensor, c.tiles ? &tile_format() : &dense_format()};
  if (c.tiles) order_as_tiles(pool, w.tensor);
  for (const bool dry : {true, false}) {
    if (!dry) scratch.reserve(scratch.high_water());
    lora_down(context, {.x = x.tensor, .lora_a = a.tensor, .dropout = drops, .xa = xa.tensor});
    linear(context, {.x = x.tensor,
                     .w = weight,
                     .bias = c.bias ? bias.tensor.reshaped({outputs}) : Tensor{},
                     .xa = xa.tensor,
                     .lora_b = b.tensor,
                     .scaling = scaling,
                     .y = y.tensor});
    linear_grad(context, {.dy = dy.tensor,
                          .w = weight,
                          .lora_b = b.tensor,
                          .lora_a = a.tensor,
                          .dropout = drops,
                          .scaling = scaling,
                          .dx = {before.tensor, c.adds ? 1.0f : 0.0f},
                          .dw = {},
                          .dbias = {},
                          .dxa = {dxa.tensor, 0.0f},
                          .dlora_b = {}});
    stream.synchronize();
  }

  // The adapter's parts follow from the xa and dxa of the op.
  const Values xa_got = xa.read(), dxa_got = dxa.read();
  const auto at = [](const Values& values, int64_t row, int64_t width, int64_t column) {
    return values[static_cast<size_t>(row * width + column)];
  };
  const ExactProduct base_y(
      tokens, outputs, inputs, [&](int64_t t, int64_t i) { return x.at(t, i); },
      [&](int64_t i, int64_t o) { return w.at(o, i); });
  const ExactProduct adapter_y(
      tokens, outputs, c.rank, [&](int64_t t, int64_t r) { return at(xa_got, t, c.rank, r); },
      [&](int64_t r, int64_t o) { return static_cast<double>(scaling) * b.at(o, r); });
  Values rest = base_y.sum, terms = base_y.size;
  for (size_t i = 0; c.bias && i < rest.size(); ++i) {
    rest[i] += bias.values[i % static_cast<size_t>(outputs)];
    terms[i] += std::abs(bias.values[i % static_cast<size_t>(outputs)]);
  }
  expect_rounded_once(y.read(), rest, terms, adapter_y, "y");

  const ExactProduct base_dx(
      tokens, inputs, outputs, [&](int64_t t, int64_t o) { return dy.at(t, o); },
      [&](int64_t o, int64_t i) { return w.at(o, i); });
  ExactProduct adapter_dx(
      tokens, inputs, c.rank, [&](int64_t t, int64_t r) { return at(dxa_got, t, c.rank, r); },
      [&](int64_t r, int64_t i) { return static_cast<double>(lora_keep_scale(c.dropout)) * a.at(r, i); });
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < inputs; ++i) {
      const auto row = static_cast<size_t>(t), element = static_cast<size_t>(t * inputs + i);
      const auto keep = lora_keep(key, c.dropout, samples[row], positions[row], static_cast<uint32_t>(i / 4));
      if (keep[static_cast<size_t>(i % 4)] != 0.0f) continue;
      adapter_dx.sum[element] = adapter_dx.size[element] = 0;
    }
  }
  rest = base_dx.sum, terms = base_dx.size;
  for (size_t i = 0; c.adds && i < rest.size(); ++i) {
    rest[i] += before.values[i];
    terms[i] += std::abs(before.values[i]);
  }
  const bool added_last = c.adds && test_device().kind == DeviceKind::kCuda;
  expect_rounded_once(before.read(), rest, terms, adapter_dx, "dx", added_last ? before.values : Values{});
}

/// Ranks that kernels of their own multiply, and ranks that they leave to the dense product.
TEST(LinearRounding, AdaptersPartIsNotRoundedAway) {
  for (const int64_t rank : {8, 40, 70}) {
    for (const float dropout : {0.0f, 0.3f}) {
      for (const bool adds : {false, true}) {
        expect_rounds_once({.rank = rank, .dropout = dropout, .bias = adds, .adds = adds});
      }
    }
  }
}

/// More than a GPU multiplies at once.
TEST(LinearRounding, NorIsThatOfManyTokens) {
  for (const float dropout : {0.0f, 0.3f}) {
    for (const bool adds : {false, true}) {
      expect_rounds_once({.tokens = 16600, .in = 16, .out = 32, .dropout = dropout, .adds = adds});
    }
  }
}

/// Weights are in tiles only where AMX multiplies them.
TEST(LinearRounding, NorIsItBesideAWeightInTiles) {
  if (test_device().kind != DeviceKind::kCpu || !gemm_rounds()) GTEST_SKIP() << "needs AMX";
  for (const bool adds : {false, true}) {
    expect_rounds_once({.rank = 8, .dropout = adds ? 0.3f : 0.0f, .bias = adds, .adds = adds, .tiles = true});
  }
}

}  // namespace
}  // namespace hone
