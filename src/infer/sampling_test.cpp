#include "infer/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "core/base/error.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

int32_t sample(std::vector<float> logits, const SamplingOptions& options, SamplePoint point = {},
               const std::vector<int32_t>& seen = {}) {
  return sample_token(logits, seen, options, point);
}

SamplingOptions drawing() {
  SamplingOptions options;
  options.do_sample = true;
  options.top_k = 0;
  return options;
}

/// Frequencies of the tokens in 2000 draws.
std::vector<double> frequencies(const std::vector<float>& logits, const SamplingOptions& options, int draws = 2000) {
  std::vector<double> result(logits.size(), 0.0);
  for (int i = 0; i < draws; ++i) {
    const int32_t id = sample(logits, options, {.sequence = 3, .position = static_cast<uint64_t>(i)});
    result[static_cast<size_t>(id)] += 1.0 / draws;
  }
  return result;
}

std::vector<int> kept(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<int> result;
  const std::vector<double> share = frequencies(logits, options);
  for (size_t i = 0; i < share.size(); ++i) {
    if (share[i] > 0) result.push_back(static_cast<int>(i));
  }
  return result;
}

/// Each frequency is within 4.5 standard deviations of a binomial distribution: one false alarm in 10^5 tests.
void expect_shares(const std::vector<float>& logits, const SamplingOptions& options, const std::vector<double>& p) {
  constexpr int kDraws = 20000;
  const std::vector<double> share = frequencies(logits, options, kDraws);
  for (size_t i = 0; i < p.size(); ++i) {
    EXPECT_NEAR(share[i], p[i], 4.5 * std::sqrt(p[i] * (1 - p[i]) / kDraws)) << "token " << i;
  }
}

TEST(Sampling, WithoutDrawingTheLargestLogitWins) {
  EXPECT_EQ(sample({0.5f, 3.0f, -1.0f, 2.9f}, {}), 1);
  SamplingOptions cold = drawing();
  cold.temperature = 0;
  EXPECT_EQ(sample({0.5f, 3.0f, -1.0f, 2.9f}, cold), 1);
}

TEST(Sampling, OfEqualLogitsTheLowestIndexWins) {
  EXPECT_EQ(sample({-1.0f, 2.0f, 2.0f, 2.0f}, {}), 1);
  SamplingOptions one = drawing();
  one.top_k = 1;
  EXPECT_THAT(kept({-1.0f, 2.0f, 2.0f, 2.0f}, one), ElementsAre(1));
}

TEST(Sampling, DrawsByTheSoftmax) {
  // e^0 : e^1 : e^2
  const double z = 1 + std::exp(1.0) + std::exp(2.0);
  expect_shares({0.0f, 1.0f, 2.0f}, drawing(), {1 / z, std::exp(1.0) / z, std::exp(2.0) / z});
}

TEST(Sampling, TemperatureDividesTheLogits) {
  SamplingOptions options = drawing();
  options.temperature = 0.5;
  const double z = 1 + std::exp(2.0) + std::exp(4.0);
  expect_shares({0.0f, 1.0f, 2.0f}, options, {1 / z, std::exp(2.0) / z, std::exp(4.0) / z});
  options.temperature = 1e-40;  // quotients overflow
  EXPECT_EQ(sample({0.0f, 1.0f, 2.0f}, options), 2);
  options.temperature = 1e-60;  // is 0 in float32
  EXPECT_EQ(sample({-1.0f, 0.0f, -2.0f}, options), 1);
}

TEST(Sampling, TopKKeepsTheKMostProbable) {
  SamplingOptions options = drawing();
  options.top_k = 2;
  EXPECT_THAT(kept({1.0f, 0.9f, 1.1f, -5.0f}, options), ElementsAre(0, 2));
  const double z = std::exp(1.0) + std::exp(1.1);
  expect_shares({1.0f, 0.9f, 1.1f, -5.0f}, options, {std::exp(1.0) / z, 0, std::exp(1.1) / z, 0});
  options.top_k = 100;  // more than there are
  EXPECT_EQ(kept({1.0f, 1.0f, 1.0f}, options).size(), 3u);
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  // Four tokens with exactly 1/4 each: two reach 0.5, any larger sum needs a third.
  const std::vector<float> equal = {1.0f, 1.0f, 1.0f, 1.0f};
  SamplingOptions options = drawing();
  options.top_p = 0.5;
  EXPECT_THAT(kept(equal, options), ElementsAre(0, 1));
  options.top_p = 0.500001;
  EXPECT_THAT(kept(equal, options), ElementsAre(0, 1, 2));
  options.top_p = 0;
  EXPECT_THAT(kept(equal, options), ElementsAre(0));
  options.top_p = 1;
  EXPECT_EQ(kept(equal, options).size(), 4u);
}

TEST(Sampling, TopPKeepsAtLeastOneToken) {
  SamplingOptions options = drawing();
  options.top_p = 0.1;
  EXPECT_THAT(kept({0.0f, 5.0f, 0.0f}, options), ElementsAre(1));
}

TEST(Sampling, TopPCountsProbabilitiesAmongTheTopK) {
  // Each of the top 2 has 1/2, so one reaches 0.5; of all four it would need two.
  SamplingOptions options = drawing();
  options.top_k = 2;
  options.top_p = 0.5;
  EXPECT_THAT(kept({1.0f, 1.0f, 1.0f, 1.0f}, options), ElementsAre(0));
}

TEST(Sampling, TopPComesAfterTheTemperature) {
  // At temperature 1 the first token has e^1 / (e^1 + 2) = 0.58; at 0.25 it has e^4 / (e^4 + 2) = 0.96.
  SamplingOptions options = drawing();
  options.top_p = 0.9;
  EXPECT_EQ(kept({1.0f, 0.0f, 0.0f}, options).size(), 3u);
  options.temperature = 0.25;
  EXPECT_THAT(kept({1.0f, 0.0f, 0.0f}, options), ElementsAre(0));
}

TEST(Sampling, PenaltyMovesSeenTokensTowardsLess) {
  SamplingOptions options;
  options.repetition_penalty = 2.0;
  EXPECT_EQ(sample({3.0f, 2.0f, -1.0f}, options, {}, {0}), 1);     // 3 / 2 < 2
  EXPECT_EQ(sample({-1.0f, -1.5f}, options, {}, {0}), 1);          // -1 * 2 < -1.5
  EXPECT_EQ(sample({3.0f, 1.0f, -1.0f}, options, {}, {0}), 0);     // 1.5 > 1
  EXPECT_EQ(sample({3.0f, 2.0f, -1.0f}, options, {}, {0, 1}), 0);  // 1.5 > 1
}

TEST(Sampling, PenaltyComesBeforeTheTemperatureAndTopK) {
  SamplingOptions options = drawing();
  options.repetition_penalty = 4.0;
  options.top_k = 1;
  for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(sample({3.0f, 1.0f, 0.0f}, options, {0, i}, {0}), 1);
}

TEST(Sampling, SeedSequenceAndPositionNameTheNumber) {
  const std::vector<float> logits(1000, 0.0f);
  SamplingOptions options = drawing();
  EXPECT_EQ(sample(logits, options, {5, 7}), sample(logits, options, {5, 7}));
  std::set<int32_t> ids = {sample(logits, options, {5, 7}), sample(logits, options, {5, 8}),
                           sample(logits, options, {6, 7}), sample(logits, options, {7, 5})};
  options.seed = 43;
  ids.insert(sample(logits, options, {5, 7}));
  EXPECT_EQ(ids.size(), 5u);
}

TEST(Sampling, MaskedTokensAreNeverDrawn) {
  const float masked = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(kept({masked, 0.0f, masked, 0.0f}, drawing()), ElementsAre(1, 3));
}

TEST(Sampling, LostNumbersAreAnError) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits :
       {std::vector<float>{0.0f, NAN, 1.0f}, {NAN, 0.0f}, {0.0f, infinity}, {-infinity, -infinity}}) {
    for (const SamplingOptions& options : {SamplingOptions{}, drawing()}) {
      try {
        sample(logits, options);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kNumbersLost);
      }
    }
  }
}

TEST(Sampling, OptionsOutOfRangeAreNamed) {
  const auto problem = [](auto change) -> std::string {
    SamplingOptions options;
    change(options);
    try {
      check_sampling(options);
    } catch (const UserError& error) {
      return error.where() + ": " + error.message();
    }
    return "none";
  };
  EXPECT_EQ(problem([](SamplingOptions&) {}), "none");
  EXPECT_EQ(problem([](SamplingOptions& o) { o.temperature = -0.5; }), "temperature: temperature is -0.5");
  EXPECT_THAT(problem([](SamplingOptions& o) { o.temperature = NAN; }), HasSubstr("temperature"));
  EXPECT_EQ(problem([](SamplingOptions& o) { o.top_p = 1.5; }), "top_p: top_p is 1.5");
  EXPECT_EQ(problem([](SamplingOptions& o) { o.top_k = -1; }), "top_k: top_k is -1");
  EXPECT_EQ(problem([](SamplingOptions& o) { o.repetition_penalty = 0; }),
            "repetition_penalty: repetition_penalty is 0");
  EXPECT_EQ(problem([](SamplingOptions& o) { o.max_new_tokens = 0; }), "max_new_tokens: max_new_tokens is 0");
}

TEST(Sampling, OptionsHaveTheRangeOfTheTypeThatTheyAreUsedIn) {
  const auto refused = [](auto change) {
    SamplingOptions options;
    change(options);
    try {
      check_sampling(options);
    } catch (const UserError&) {
      return true;
    }
    return false;
  };
  for (const double penalty : {1e-50, 1e50}) {
    EXPECT_TRUE(refused([&](SamplingOptions& o) { o.repetition_penalty = penalty; })) << penalty;
  }
  EXPECT_TRUE(refused([](SamplingOptions& o) { o.temperature = 1e50; }));
  std::vector<float> logits = {0.0f, 3.0f, -1.0f};
  SamplingOptions cold{.temperature = 1e-50, .do_sample = true};
  check_sampling(cold);
  EXPECT_EQ(sample_token(logits, {}, cold, {}), 1) << "0 in float32: the most probable token";
}

class SamplingDefaultsFile : public testing::Test {
 protected:
  SamplingDefaultsFile()
      : folder_(std::filesystem::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
  }
  ~SamplingDefaultsFile() override { std::filesystem::remove_all(folder_); }

  SamplingDefaults read(const std::string& json) {
    std::ofstream(folder_ / "generation_config.json") << json;
    return read_sampling_defaults(folder_);
  }
  std::string problem(const std::string& json) {
    try {
      read(json);
    } catch (const UserError& error) {
      EXPECT_THAT(error.where(), HasSubstr("generation_config.json"));
      return error.message();
    }
    return "none";
  }

  std::filesystem::path folder_;
};

TEST_F(SamplingDefaultsFile, GivesTheOptionsThatItStates) {
  const SamplingDefaults defaults = read(R"({"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8,
      "repetition_penalty": 1.05, "eos_token_id": [1, 2], "transformers_version": "5.0", "min_p": null})");
  EXPECT_TRUE(defaults.options.do_sample);
  EXPECT_EQ(defaults.options.temperature, 0.7);
  EXPECT_EQ(defaults.options.top_k, 20);
  EXPECT_EQ(defaults.options.top_p, 0.8);
  EXPECT_EQ(defaults.options.repetition_penalty, 1.05);
  EXPECT_EQ(defaults.options.max_new_tokens, SamplingOptions{}.max_new_tokens);
  EXPECT_THAT(defaults.not_applied, ElementsAre());
}

TEST_F(SamplingDefaultsFile, MayBeAbsent) {
  const SamplingDefaults defaults = read_sampling_defaults(folder_);
  EXPECT_FALSE(defaults.options.do_sample);
  EXPECT_EQ(defaults.options.top_k, 50);
}

TEST_F(SamplingDefaultsFile, NamesSettingsThatAreNotApplied) {
  EXPECT_THAT(read(R"({"num_beams": 4, "min_p": 0.1, "typical_p": 1.0, "num_beam_groups": 1})").not_applied,
              ElementsAre("num_beams", "min_p"));
}

TEST_F(SamplingDefaultsFile, IsRefusedWithTheKeyIfItIsBroken) {
  EXPECT_EQ(problem("[1]"), "the file is not a JSON object");
  EXPECT_EQ(problem("{\"top_k\": "), "the file is not a JSON object");
  EXPECT_EQ(problem(R"({"top_k": "many"})"), "top_k is \"many\", not a whole number");
  EXPECT_EQ(problem(R"({"do_sample": 1})"), "do_sample is 1, not true or false");
  EXPECT_EQ(problem(R"({"temperature": true})"), "temperature is true, not a number");
  EXPECT_EQ(problem(R"({"top_p": 7})"), "top_p is 7");
}

}  // namespace
}  // namespace hone
