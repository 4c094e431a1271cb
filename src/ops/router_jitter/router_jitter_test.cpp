#include "ops/router_jitter/router_jitter.h"

#include <algorithm>
#include <cmath>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::TestStruct;
using testing::TestTensor;
using testing::Values;

constexpr uint64_t kSeed = 11;
constexpr uint32_t kLayer = 3;

/// Rows of two samples.
struct Rows {
  std::vector<int64_t> samples;
  std::vector<int32_t> positions;
  TestStruct<StepScalars> scalars{{.seed = kSeed}};
  std::unique_ptr<TestTensor<int64_t>> sample_tensor;
  std::unique_ptr<TestTensor<int32_t>> position_tensor;

  explicit Rows(int64_t count) {
    for (int64_t t = 0; t < count; ++t) {
      samples.push_back(t < count / 2 ? 7 : (int64_t{1} << 33) + 1);
      positions.push_back(static_cast<int32_t>(t < count / 2 ? t : t - count / 2));
    }
    sample_tensor = std::make_unique<TestTensor<int64_t>>(samples, Shape{count});
    position_tensor = std::make_unique<TestTensor<int32_t>>(positions, Shape{count});
  }

  LoraDropoutContext context() const {
    return {.scalars = scalars.get(), .sample_ids = *sample_tensor, .positions = *position_tensor};
  }

  Values factors(int64_t hidden, float noise, uint32_t layer = kLayer) const {
    Values values;
    const uint64_t key = router_jitter_key(kSeed, layer);
    for (size_t t = 0; t < samples.size(); ++t) {
      for (int64_t h = 0; h < hidden; ++h) {
        const auto group = router_jitter_factors(key, noise, samples[t], positions[t], static_cast<uint32_t>(h / 4));
        values.push_back(static_cast<double>(group[static_cast<size_t>(h % 4)]));
      }
    }
    return values;
  }
};

OpCase jitter_case(int64_t tokens, int64_t hidden, float noise) {
  const auto rows = std::make_shared<Rows>(tokens);
  return {.inputs = {testing::random_argument({tokens, hidden}, 1)},
          .weights = {},
          .op =
              [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
                const RouterJitter jitter{.noise = noise, .layer = kLayer, .rows = rows->context()};
                // The second use adds to the existing gradient.
                return std::vector<Var>{router_jitter(tape, in[0], jitter), router_jitter(tape, in[0], jitter)};
              },
          .reference =
              [=](const std::vector<Values>& a) {
                const Values u = rows->factors(hidden, noise);
                Values y(u.size());
                for (size_t i = 0; i < y.size(); ++i) y[i] = a[0][i] * u[i];
                return std::vector<Values>{y, y};
              }};
}

TEST(RouterJitter, MatchesTheReferenceAndItsGradients) {
  const std::pair<int64_t, int64_t> sizes[] = {{1, 1}, {7, 13}, {0, 8}, {40, 64}, {3, 701}};
  for (const auto& [tokens, hidden] : sizes) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << hidden);
    expect_matches_reference(jitter_case(tokens, hidden, 0.25f), DType::kF32, 1e-6);
    expect_matches_reference(jitter_case(tokens, hidden, 0.25f), DType::kBF16,
                             0x1p-7);  // the sum of two, rounded twice
  }
}

TEST(RouterJitter, IsUniformAroundOneAndAnotherOneInEachLayer) {
  const Rows rows(400);
  constexpr float kNoise = 0.1f;
  const Values u = rows.factors(64, kNoise);
  double mean = 0, variance = 0;
  for (double value : u) mean += value / static_cast<double>(u.size());
  for (double value : u) variance += (value - 1) * (value - 1) / static_cast<double>(u.size());
  const auto [least, most] = std::minmax_element(u.begin(), u.end());
  EXPECT_GE(*least, 0.9 - 1e-7);
  EXPECT_LE(*most, 1.1 + 1e-7);
  // A uniform number of half-width ε has variance ε²/3; the error of the mean of 25600 is at most 4 ε / sqrt(3 ·
  // 25600).
  EXPECT_NEAR(mean, 1.0, 4 * 0.1 / std::sqrt(3.0 * 25600));
  EXPECT_NEAR(variance, 0.01 / 3, 0.01 / 3 * 0.05);
  EXPECT_NE(rows.factors(64, kNoise, kLayer + 1), u);
  EXPECT_FALSE(std::equal(u.begin(), u.begin() + 64, u.begin() + 64));
}

}  // namespace
}  // namespace hone
