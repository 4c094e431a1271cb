// linear and its adapter on sizes beyond one tile, each element within a bound from the sizes of its own terms.
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "ops/linear/linear.h"
#include "ops/rounding_testing.h"

namespace hone {
namespace {

using testing::ExactMatrix;
using testing::test_device;
using testing::Values;

/// Σ terms and Σ |terms| for each element of a matrix, and what it may be off besides.
struct Sums {
  Values sum, size, error;

  explicit Sums(size_t count) : sum(count, 0.0), size(count, 0.0), error(count, 0.0) {}
  void add(size_t i, double term) {
    sum[i] += term;
    size[i] += std::abs(term);
  }
  void add(const Values& terms) {
    for (size_t i = 0; i < terms.size(); ++i) add(i, terms[i]);
  }
};

using Element = std::function<double(int64_t, int64_t)>;

/// Adds alpha · Σ_k a(i, k) b(k, j).
void add_product(Sums& sums, int64_t m, int64_t n, int64_t k, double alpha, const Element& a, const Element& b) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      const double left = alpha * a(i, l);
      if (left == 0.0) continue;
      for (int64_t j = 0; j < n; ++j) sums.add(static_cast<size_t>(i * n + j), left * b(l, j));
    }
  }
}

/// `factors` is the number of bfloat16 roundings in a term: 2^-8 each; a float32 sum of up to 1024 terms is good to
/// 2^10 · 2^-24 of its terms' sizes. The result is rounded `roundings` times where it is bfloat16.
void expect_within(const ExactMatrix& got, const Sums& want, int factors, int roundings, const std::string& what) {
  const Values values = got.read();
  const double rounding = got.tensor.dtype == DType::kBF16 ? roundings * 0x1p-8 : 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = (factors * 0x1p-8 + 0x1p-14) * want.size[i] + want.error[i];
    const double bound = exact * (1 + rounding) + rounding * std::abs(want.sum[i]);
    ASSERT_LE(std::abs(values[i] - want.sum[i]), bound + 1e-30) << what << " element " << i << " is " << values[i];
  }
}

struct LayerSizes {
  int64_t tokens, in, out, rank;
};

/// One layer with an adapter: activations and base weights of one dtype, the adapter in float32, dropout or none, and
/// every gradient added to what is there.
void expect_layer_within_bounds(const LayerSizes& sizes, DType dtype, float dropout) {
  SCOPED_TRACE(::testing::Message() << name_of(dtype) << " T " << sizes.tokens << " in " << sizes.in << " out "
                                    << sizes.out << " r " << sizes.rank << " dropout " << dropout);
  const auto [tokens, in, out, rank] = sizes;
  const float scaling = 0.5f;
  const ExactMatrix x(tokens, in, dtype, 1), w(out, in, dtype, 2), bias(1, out, dtype, 3), dy(tokens, out, dtype, 4);
  const ExactMatrix a(rank, in, DType::kF32, 5), b(out, rank, DType::kF32, 6);
  const ExactMatrix y(tokens, out, dtype, 7), dx(tokens, in, dtype, 8), adapter_dx(tokens, in, dtype, 9);
  const ExactMatrix dw(out, in, DType::kF32, 10), dbias(1, out, DType::kF32, 11), da(rank, in, DType::kF32, 12),
      db(out, rank, DType::kF32, 13);
  const ExactMatrix xa(tokens, rank, DType::kF32, 14), dxa(tokens, rank, DType::kF32, 15);

  std::vector<int64_t> samples;
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < tokens; ++t) {
    samples.push_back(t / 7);
    positions.push_back(static_cast<int32_t>(t % 7));
  }
  const testing::TestTensor<int64_t> sample_ids(samples, {tokens});
  const testing::TestTensor<int32_t> position_ids(positions, {tokens});
  StepScalars step;
  step.seed = 11;
  const testing::TestStruct<StepScalars> scalars(step);
  const LoraDropout drops{dropout, 3, {scalars.get(), sample_ids, position_ids}};
  const uint64_t key = lora_dropout_key(step.seed, drops.stream_id);
  const double keep_scale = static_cast<double>(lora_keep_scale(dropout));
  Values kept;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < in; ++i) {
      const auto keep = lora_keep(key, dropout, samples[static_cast<size_t>(t)], positions[static_cast<size_t>(t)],
                                  static_cast<uint32_t>(i / 4));
      kept.push_back(static_cast<double>(keep[static_cast<size_t>(i % 4)]));
    }
  }
  const auto keep_of = [&](int64_t t, int64_t i) { return kept[static_cast<size_t>(t * in + i)]; };

  const Values dxa_before = dxa.values;
  ThreadPool pool(2);
  testing::TestStream stream(pool);
  Arena scratch(test_device(), "scratch");
  const Context context(stream, scratch);
  for (const bool dry : {true, false}) {
    if (!dry) scratch.reserve(scratch.high_water());
    lora_down(context, {.x = x.tensor, .lora_a = a.tensor, .dropout = drops, .xa = xa.tensor});
    linear(context, {.x = x.tensor,
                     .w = w.tensor,
                     .bias = bias.tensor.reshaped({out}),
                     .xa = xa.tensor,
                     .lora_b = b.tensor,
                     .scaling = scaling,
                     .y = y.tensor});
    linear_grad(context, {.dy = dy.tensor,
                          .x = x.tensor,
                          .w = w.tensor,
                          .xa = xa.tensor,
                          .lora_b = b.tensor,
                          .scaling = scaling,
                          .dx = {dx.tensor, 1.0f},
                          .dw = {dw.tensor, 1.0f},
                          .dbias = {dbias.tensor.reshaped({out}), 1.0f},
                          .dxa = {dxa.tensor, 1.0f},
                          .dlora_b = {db.tensor, 1.0f}});
    lora_down_grad(context, {.dxa = dxa.tensor,
                             .x = x.tensor,
                             .lora_a = a.tensor,
                             .dropout = drops,
                             .dx = {adapter_dx.tensor, 1.0f},
                             .dlora_a = {da.tensor, 1.0f}});
    stream.synchronize();
  }

  // Roundings of float32 factors to bfloat16, by a GPU, and by a CPU with AMX.
  const bool rounds = test_device().kind == DeviceKind::kCuda || gemm_rounds();
  const int narrow = dtype == DType::kBF16 && rounds ? 1 : 0;
  const auto count = [](int64_t m, int64_t n) { return static_cast<size_t>(m * n); };
  Sums want_xa(count(tokens, rank));
  add_product(
      want_xa, tokens, rank, in, keep_scale, [&](int64_t t, int64_t i) { return keep_of(t, i) * x.at(t, i); },
      [&](int64_t i, int64_t r) { return a.at(r, i); });
  expect_within(xa, want_xa, narrow, 0, "xa");

  // What comes next is computed from the xa and dxa of the op, so that errors do not add up.
  const Values xa_got = xa.read(), dxa_got = dxa.read();
  const auto xa_at = [&](int64_t t, int64_t r) { return xa_got[static_cast<size_t>(t * rank + r)]; };
  const auto dxa_at = [&](int64_t t, int64_t r) { return dxa_got[static_cast<size_t>(t * rank + r)]; };
  const auto dy_at = [&](int64_t t, int64_t o) { return dy.at(t, o); };
  const auto x_at = [&](int64_t t, int64_t i) { return x.at(t, i); };

  Sums want_y(count(tokens, out));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t o = 0; o < out; ++o) want_y.add(static_cast<size_t>(t * out + o), bias.at(0, o));
  }
  add_product(want_y, tokens, out, in, 1.0, x_at, [&](int64_t i, int64_t o) { return w.at(o, i); });
  // The adapter's product is rounded before it is added, and the sum where it is stored.
  Sums adapter_y(count(tokens, out));
  add_product(adapter_y, tokens, out, rank, scaling, xa_at, [&](int64_t r, int64_t o) { return b.at(o, r); });
  const Values y_got = y.read();
  for (size_t i = 0; i < y_got.size(); ++i) {
    const double rounding = dtype == DType::kBF16 ? 0x1p-8 : 0.0;
    const double want = want_y.sum[i] + adapter_y.sum[i];
    const double bound = (2 * narrow * 0x1p-8 + 0x1p-14) * adapter_y.size[i] + 0x1p-14 * want_y.size[i] +
                         1.1 * rounding * (std::abs(adapter_y.sum[i]) + std::abs(want));
    ASSERT_LE(std::abs(y_got[i] - want), bound) << "y element " << i;
  }

  Sums want_dx(count(tokens, in)), want_dw(count(out, in)), want_dbias(count(1, out)), want_dxa(count(tokens, rank)),
      want_db(count(out, rank));
  add_product(want_dx, tokens, in, out, 1.0, dy_at, [&](int64_t o, int64_t i) { return w.at(o, i); });
  // A GPU rounds the product before it adds to what is there.
  const double first_rounding = test_device().kind == DeviceKind::kCuda && dtype == DType::kBF16 ? 0x1p-8 : 0.0;
  for (size_t i = 0; i < want_dx.error.size(); ++i) want_dx.error[i] = first_rounding * std::abs(want_dx.sum[i]);
  want_dx.add(dx.values);
  expect_within(dx, want_dx, 0, 1, "dx");
  want_dw.add(dw.values);
  add_product(
      want_dw, out, in, tokens, 1.0, [&](int64_t o, int64_t t) { return dy.at(t, o); }, x_at);
  expect_within(dw, want_dw, 0, 0, "dw");
  want_dbias.add(dbias.values);
  add_product(
      want_dbias, 1, out, tokens, 1.0, [](int64_t, int64_t) { return 1.0; }, dy_at);
  expect_within(dbias, want_dbias, 0, 0, "dbias");
  want_dxa.add(dxa_before);
  add_product(want_dxa, tokens, rank, out, scaling, dy_at, [&](int64_t o, int64_t r) { return b.at(o, r); });
  expect_within(dxa, want_dxa, narrow, 0, "dxa");
  want_db.add(db.values);
  add_product(
      want_db, out, rank, tokens, scaling, [&](int64_t o, int64_t t) { return dy.at(t, o); }, xa_at);
  expect_within(db, want_db, narrow, 0, "dlora_b");

  Sums want_adapter_dx(count(tokens, in)), want_da(count(rank, in));
  add_product(want_adapter_dx, tokens, in, rank, keep_scale, dxa_at, [&](int64_t r, int64_t i) { return a.at(r, i); });
  for (size_t i = 0; i < kept.size(); ++i) want_adapter_dx.sum[i] *= kept[i], want_adapter_dx.size[i] *= kept[i];
  want_adapter_dx.add(adapter_dx.values);
  expect_within(adapter_dx, want_adapter_dx, 2 * narrow, 1, "dx of the adapter");
  want_da.add(da.values);
  add_product(
      want_da, rank, in, tokens, keep_scale, [&](int64_t r, int64_t t) { return dxa_at(t, r); },
      [&](int64_t t, int64_t i) { return keep_of(t, i) * x.at(t, i); });
  expect_within(da, want_da, narrow, 0, "dlora_a");
}

TEST(LinearBounds, LayersBeyondOneTile) {
  for (const LayerSizes& sizes : {LayerSizes{1, 8, 16, 1},
                                  {65, 136, 40, 5},
                                  {300, 264, 72, 16},
                                  {77, 72, 520, 33},
                                  {150, 128, 96, 64},
                                  {20, 520, 24, 70},
                                  {129, 37, 53, 8},
                                  {520, 16, 8, 17}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const float dropout : {0.0f, 0.3f}) expect_layer_within_bounds(sizes, dtype, dropout);
    }
  }
}

TEST(LinearBounds, NoTokensGiveZeroGradients) {
  ThreadPool pool(2);
  testing::TestStream stream(pool);
  Arena scratch(test_device(), "scratch");
  scratch.reserve(size_t{1} << 20);
  const Context context(stream, scratch);
  const int64_t in = 24, out = 16, rank = 4;
  Buffer nothing(test_device(), 256);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const float beta : {0.0f, 1.0f}) {
      const auto empty = [&](int64_t columns, DType type) { return nothing.tensor({0, columns}, type); };
      const ExactMatrix w(out, in, dtype, 1), a(rank, in, dtype, 2), b(out, rank, dtype, 3);
      const ExactMatrix dw(out, in, DType::kF32, 4), dbias(1, out, DType::kF32, 5), da(rank, in, DType::kF32, 6),
          db(out, rank, DType::kF32, 7);
      linear(context, {.x = empty(in, dtype),
                       .w = w.tensor,
                       .xa = empty(rank, DType::kF32),
                       .lora_b = b.tensor,
                       .scaling = 1.0f,
                       .y = empty(out, dtype)});
      linear_grad(context, {.dy = empty(out, dtype),
                            .x = empty(in, dtype),
                            .w = w.tensor,
                            .xa = empty(rank, DType::kF32),
                            .lora_b = b.tensor,
                            .scaling = 1.0f,
                            .dx = {empty(in, dtype)},
                            .dw = {dw.tensor, beta},
                            .dbias = {dbias.tensor.reshaped({out}), beta},
                            .dxa = {empty(rank, DType::kF32)},
                            .dlora_b = {db.tensor, beta}});
      lora_down_grad(context, {.dxa = empty(rank, DType::kF32),
                               .x = empty(in, dtype),
                               .lora_a = a.tensor,
                               .dropout = {},
                               .dx = {empty(in, dtype)},
                               .dlora_a = {da.tensor, beta}});
      stream.synchronize();
      for (const ExactMatrix* gradient : {&dw, &dbias, &da, &db}) {
        const Values zeros(gradient->values.size(), 0.0);
        EXPECT_EQ(gradient->read(), beta == 0.0f ? zeros : gradient->values);
      }
    }
  }
}

}  // namespace
}  // namespace hone
