#include "ops/embedding_noise/embedding_noise.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::TestStruct;
using testing::TestTensor;
using testing::Values;

constexpr uint64_t kSeed = 11;

/// Consecutive documents of these lengths, each its own sample.
struct Pack {
  std::vector<int32_t> cu_seqlens = {0};
  std::vector<int64_t> samples;
  std::vector<int32_t> positions;
  TestStruct<StepScalars> scalars{{.seed = kSeed}};
  std::unique_ptr<TestTensor<int64_t>> sample_tensor;
  std::unique_ptr<TestTensor<int32_t>> position_tensor, offset_tensor;

  explicit Pack(const std::vector<int32_t>& lengths, int64_t first_sample = (int64_t{1} << 33) + 1) {
    for (size_t d = 0; d < lengths.size(); ++d) {
      for (int32_t i = 0; i < lengths[d]; ++i) {
        samples.push_back(first_sample + static_cast<int64_t>(d));
        positions.push_back(i);
      }
      cu_seqlens.push_back(cu_seqlens.back() + lengths[d]);
    }
    sample_tensor = std::make_unique<TestTensor<int64_t>>(samples, Shape{tokens()});
    position_tensor = std::make_unique<TestTensor<int32_t>>(positions, Shape{tokens()});
    offset_tensor = std::make_unique<TestTensor<int32_t>>(cu_seqlens, Shape{static_cast<int64_t>(cu_seqlens.size())});
  }

  int64_t tokens() const { return static_cast<int64_t>(samples.size()); }
  int64_t documents() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }

  EmbeddingNoise noise(float alpha) const {
    return {.alpha = alpha,
            .sequences = {.cu_seqlens = *offset_tensor, .num_documents = documents(), .max_seqlen = tokens()},
            .rows = {.scalars = scalars.get(), .sample_ids = *sample_tensor, .positions = *position_tensor}};
  }

  Values expected_noise(int64_t hidden, double alpha) const {
    Values values;
    const uint64_t key = embedding_noise_key(kSeed);
    for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
      const double length = cu_seqlens[d + 1] - cu_seqlens[d];
      for (auto t = static_cast<size_t>(cu_seqlens[d]); t < static_cast<size_t>(cu_seqlens[d + 1]); ++t) {
        for (int64_t h = 0; h < hidden; ++h) {
          const auto draws = embedding_noise_draws(key, samples[t], positions[t], static_cast<uint32_t>(h / 4));
          values.push_back(alpha / std::sqrt(length * static_cast<double>(hidden)) *
                           static_cast<double>(draws[static_cast<size_t>(h % 4)]));
        }
      }
    }
    return values;
  }
};

OpCase noise_case(const std::vector<int32_t>& lengths, int64_t hidden) {
  const auto pack = std::make_shared<Pack>(lengths);
  return {.inputs = {testing::random_argument({pack->tokens(), hidden}, 1)},
          .weights = {},
          .op =
              [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
                // The second use adds to the existing gradient.
                return std::vector<Var>{embedding_noise(tape, in[0], pack->noise(5.0f)),
                                        embedding_noise(tape, in[0], pack->noise(5.0f))};
              },
          .reference =
              [=](const std::vector<Values>& a) {
                Values y = pack->expected_noise(hidden, 5.0);
                for (size_t i = 0; i < y.size(); ++i) y[i] += a[0][i];
                return std::vector<Values>{y, y};
              }};
}

TEST(EmbeddingNoise, MatchesTheReferenceAndItsGradients) {
  const std::pair<std::vector<int32_t>, int64_t> cases[] = {
      {{1}, 1}, {{3, 4}, 13}, {{0, 2, 0, 0, 5, 0}, 8}, {{40}, 64}, {{1, 1, 1}, 701}, {std::vector<int32_t>(500, 1), 3}};
  for (const auto& [lengths, hidden] : cases) {
    SCOPED_TRACE(::testing::Message() << lengths.size() << " documents, " << hidden);
    expect_matches_reference(noise_case(lengths, hidden), DType::kF32, 1e-6);
    expect_matches_reference(noise_case(lengths, hidden), DType::kBF16, 0x1p-7);  // the sum of two, rounded twice
  }
}

TEST(EmbeddingNoise, IsUniformWithTheWidthOfItsDocument) {
  const Pack pack({400, 100});
  const Values noise = pack.expected_noise(64, 5.0);
  for (const auto& [begin, length] : {std::pair{0, 400}, {400, 100}}) {
    const auto first = noise.begin() + begin * 64, last = first + length * 64;
    const double width = 5.0 / std::sqrt(length * 64.0), count = length * 64.0;
    const auto [least, most] = std::minmax_element(first, last);
    EXPECT_GE(*least, -width * 1.0001);
    EXPECT_LT(*most, width * 1.0001);
    EXPECT_GT(*most - *least, 1.9 * width);
    // A uniform number of half-width w has variance w² / 3: the error of the mean of n is at most 4 w / sqrt(3 n).
    EXPECT_NEAR(std::accumulate(first, last, 0.0) / count, 0.0, 4 * width / std::sqrt(3 * count));
    EXPECT_NEAR(std::inner_product(first, last, first, 0.0) / count, width * width / 3, width * width / 3 * 0.05);
  }
  EXPECT_FALSE(std::equal(noise.begin(), noise.begin() + 64, noise.begin() + 64));
}

/// The noise of a sample does not depend on the pack.
TEST(EmbeddingNoise, DoesNotDependOnThePack) {
  const Pack together({7, 5, 9}, 20), alone({5}, 21);
  const Values all = together.expected_noise(12, 5.0), own = alone.expected_noise(12, 5.0);
  EXPECT_TRUE(std::equal(own.begin(), own.end(), all.begin() + 7 * 12));
}

}  // namespace
}  // namespace hone
