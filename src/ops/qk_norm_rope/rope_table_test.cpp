#include "ops/qk_norm_rope/rope_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace hone {
namespace {

struct Expected {
  std::string name;
  RopeParameters parameters;
  int64_t run_length;
  std::vector<float> inverse;
  double attention_scaling;
};

/// Frequencies that transformers 5.17 computes for these parameters.
std::vector<Expected> expectations() {
  std::vector<Expected> all;
  all.push_back({"default",
                 {.rotary_dim = 16, .max_position_embeddings = 512},
                 512,
                 {1.0f, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f, 0.00100000005f,
                  0.000316227786f},
                 1.0});
  RopeParameters linear{.rotary_dim = 8, .max_position_embeddings = 512, .scaling = {.type = RopeType::kLinear}};
  linear.scaling.factor = 4.0;
  all.push_back({"linear", linear, 512, {0.25f, 0.0250000004f, 0.00249999994f, 0.000250000012f}, 1.0});
  RopeParameters dynamic{.rotary_dim = 8, .max_position_embeddings = 512, .scaling = {.type = RopeType::kDynamic}};
  dynamic.scaling.factor = 2.0;
  const std::vector<float> plain{1.0f, 0.100000001f, 0.00999999978f, 0.00100000005f};
  all.push_back({"dynamic, short", dynamic, 100, plain, 1.0});
  all.push_back({"dynamic, just full", dynamic, 512, plain, 1.0});
  all.push_back({"dynamic, long", dynamic, 2048, {1.0f, 0.0522757992f, 0.00273275888f, 0.000142857127f}, 1.0});
  RopeParameters yarn{.rotary_dim = 16, .max_position_embeddings = 512, .scaling = {.type = RopeType::kYarn}};
  yarn.scaling.factor = 4.0;
  yarn.scaling.original_max_position_embeddings = 64;
  all.push_back({"yarn",
                 yarn,
                 512,
                 {1.0f, 0.237170815f, 0.049999997f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
                  7.90569466e-05f},
                 1.13862944});
  RopeParameters exact{.rope_theta = 150000.0,
                       .rotary_dim = 32,
                       .max_position_embeddings = 131072,
                       .scaling = {.type = RopeType::kYarn}};
  exact.scaling.original_max_position_embeddings = 4096;  // factor: 131072 / 4096 = 32
  exact.scaling.truncate = false;
  all.push_back({"yarn, not truncated, implied factor",
                 exact,
                 512,
                 {1.0f, 0.47478205f, 0.225418001f, 0.107024424f, 0.05081328f, 0.0193350017f, 0.00679495931f,
                  0.00209379266f, 0.000456483918f, 3.83088118e-05f, 1.8188337e-05f, 8.63549576e-06f, 4.09997847e-06f,
                  1.94659629e-06f, 9.24208962e-07f, 4.38797855e-07f},
                 1.34657359});
  RopeParameters proportional{.rope_theta = 1000000.0,
                              .rotary_dim = 48,
                              .max_position_embeddings = 512,
                              .scaling = {.type = RopeType::kProportional, .proportion = 0.25}};
  std::vector<float> quarter(24);
  std::ranges::copy(std::vector{1.0f, 0.562341332f, 0.316227764f, 0.177827939f, 0.099999994f, 0.0562341362f},
                    quarter.begin());
  all.push_back({"proportional", proportional, 512, quarter, 1.0});
  RopeParameters mscale{.rotary_dim = 16, .max_position_embeddings = 163840, .scaling = {.type = RopeType::kYarn}};
  mscale.scaling.factor = 40.0;
  mscale.scaling.original_max_position_embeddings = 4096;
  mscale.scaling.mscale = 1.0;
  mscale.scaling.mscale_all_dim = 0.5;
  all.push_back({"yarn, mscale",
                 mscale,
                 512,
                 {1.0f, 0.316227764f, 0.100000001f, 0.0239147246f, 0.00512499968f, 0.000849862176f, 2.49999994e-05f,
                  7.90569447e-06f},
                 1.15572199});
  RopeParameters llama3{.rotary_dim = 16, .max_position_embeddings = 512, .scaling = {.type = RopeType::kLlama3}};
  llama3.scaling.factor = 8.0;
  llama3.scaling.original_max_position_embeddings = 64;
  all.push_back({"llama3",
                 llama3,
                 512,
                 {1.0f, 0.244384587f, 0.0130422562f, 0.00395284733f, 0.00124999997f, 0.000395284733f, 0.000125000006f,
                  3.95284733e-05f},
                 1.0});
  return all;
}

TEST(RopeTable, FrequenciesAreThoseOfTransformers) {
  for (const Expected& expected : expectations()) {
    const RopeFrequencies got = rope_frequencies(expected.parameters, expected.run_length);
    ASSERT_EQ(got.inverse.size(), expected.inverse.size()) << expected.name;
    for (size_t i = 0; i < got.inverse.size(); ++i) {
      // pow may differ by an ulp of float32 between libraries, and up to six operations follow it
      EXPECT_NEAR(got.inverse[i], expected.inverse[i], 8 * 0x1p-24 * expected.inverse[i]) << expected.name << " " << i;
    }
    EXPECT_NEAR(got.attention_scaling, expected.attention_scaling, 1e-7) << expected.name;
  }
}

TEST(RopeTable, AnExplicitAttentionFactorWins) {
  RopeParameters parameters{.rotary_dim = 16, .max_position_embeddings = 512, .scaling = {.type = RopeType::kYarn}};
  parameters.scaling.factor = 4.0;
  parameters.scaling.attention_factor = 0.75;
  EXPECT_EQ(rope_frequencies(parameters, 512).attention_scaling, 0.75f);
}

TEST(RopeTable, HoldsScaledCosinesAndSines) {
  const RopeFrequencies frequencies{.inverse = {1.0f, 0.01f}, .attention_scaling = 1.5f};
  const RopeTableValues table = rope_table_values(frequencies, 300);
  ASSERT_EQ(table.cos.size(), 600u);
  ASSERT_EQ(table.sin.size(), 600u);
  for (int position : {0, 1, 7, 299}) {
    for (size_t i = 0; i < 2; ++i) {
      const float angle = frequencies.inverse[i] * static_cast<float>(position);
      const size_t at = static_cast<size_t>(position) * 2 + i;
      EXPECT_NEAR(table.cos[at], 1.5 * std::cos(static_cast<double>(angle)), 3e-7);
      EXPECT_NEAR(table.sin[at], 1.5 * std::sin(static_cast<double>(angle)), 3e-7);
    }
  }
}

TEST(RopeTable, HoldsTheAnglesOfTransformersAtAMillionPositions) {
  // float32 positions times float32 frequencies, as torch computes them.
  struct Row {
    size_t position;
    double cos[2], sin[2];
  };
  constexpr Row kRows[] = {
      {262143, {-0.6091614961624146, -0.17901107668876648}, {0.7930461764335632, -0.9838470816612244}},
      {1048573, {-0.8877240419387817, 0.7524988055229187}, {-0.46037596464157104, -0.6585935950279236}},
      {1048575, {0.7880422472953796, 0.7538639307022095}, {-0.6156211495399475, -0.6570305824279785}}};
  constexpr int64_t kPositions = int64_t{1} << 20;
  const RopeTableValues table = rope_table_values(
      rope_frequencies({.rope_theta = 1e6, .rotary_dim = 4, .max_position_embeddings = kPositions}, kPositions),
      kPositions);
  for (const Row& row : kRows) {
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(table.cos[2 * row.position + i], row.cos[i], 1e-7) << row.position;
      EXPECT_NEAR(table.sin[2 * row.position + i], row.sin[i], 1e-7) << row.position;
    }
  }
}

TEST(RopeTable, AlphaStretchesThetaAtAnyLength) {
  RopeParameters dynamic{.rotary_dim = 8, .max_position_embeddings = 512, .scaling = {.type = RopeType::kDynamic}};
  dynamic.scaling.alpha = 1000.0;
  RopeParameters stretched{.rope_theta = 10000.0 * std::pow(1000.0, 8.0 / 6.0), .rotary_dim = 8};
  for (const int64_t length : {10, 4096}) {
    EXPECT_EQ(rope_frequencies(dynamic, length).inverse, rope_frequencies(stretched, length).inverse) << length;
  }
}

TEST(RopeTable, ScalesQueriesByTheirPosition) {
  const RopeFrequencies frequencies{.inverse = {1.0f, 0.01f}, .attention_scaling = 1.5f};
  const RopeTableValues rope = rope_table_values(frequencies, 40);
  const RopeTableValues scaled = scaled_query_table(rope, 40, 3, {.beta = 0.1, .length = 16});
  ASSERT_EQ(scaled.cos.size(), 40u * 5);
  ASSERT_EQ(scaled.sin.size(), 40u * 5);
  for (const size_t position : {0u, 15u, 16u, 31u, 32u, 39u}) {
    const double scale = 1 + 0.1 * std::log(1.0 + static_cast<double>(position / 16));
    for (size_t i = 0; i < 5; ++i) {
      const size_t at = position * 5 + i, from = position * 2 + i - 3;
      EXPECT_NEAR(scaled.cos[at], scale * (i < 3 ? 1.0 : static_cast<double>(rope.cos[from])), 3e-7) << position;
      EXPECT_NEAR(scaled.sin[at], scale * (i < 3 ? 0.0 : static_cast<double>(rope.sin[from])), 3e-7) << position;
    }
  }
  EXPECT_EQ(scaled.cos[15 * 5], 1.0f);
  EXPECT_GT(scaled.cos[16 * 5], 1.0f);
}

TEST(RopeTable, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(rope_type_of("llama3"), RopeType::kLlama3);
  EXPECT_THROW(rope_type_of("longrope"), UserError);
  RopeParameters parameters{.rotary_dim = 16, .max_position_embeddings = 512, .scaling = {.type = RopeType::kLinear}};
  EXPECT_THROW(rope_frequencies(parameters, 512), UserError);  // no factor
  parameters.scaling.factor = -2.0;
  EXPECT_THROW(rope_frequencies(parameters, 512), UserError);
  parameters.scaling = {};
  parameters.rotary_dim = 15;
  EXPECT_THROW(rope_frequencies(parameters, 512), UserError);
}

}  // namespace
}  // namespace hone
