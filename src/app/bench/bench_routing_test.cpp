#include "app/bench/bench_routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "config/config_testing.h"
#include "report/folder_testing.h"

namespace hone {
namespace {

using testing::HasSubstr;

constexpr int64_t kTokens = 4096;

/// How often each expert is drawn for a layer, the most often first. Expects k different experts for each token.
std::vector<double> loads_of(const BenchRouting& routing, int64_t experts, int64_t k, int64_t layer = 0) {
  const std::vector<int32_t> ids = routing.draw(layer, kTokens, experts, k, 42);
  EXPECT_EQ(ids.size(), static_cast<size_t>(kTokens * k));
  std::vector<double> loads(static_cast<size_t>(experts));
  for (size_t i = 0; i < ids.size(); i += static_cast<size_t>(k)) {
    const std::set<int32_t> of_token(ids.begin() + static_cast<std::ptrdiff_t>(i),
                                     ids.begin() + static_cast<std::ptrdiff_t>(i) + k);
    EXPECT_EQ(of_token.size(), static_cast<size_t>(k));
    for (const int32_t id : of_token) ++loads.at(static_cast<size_t>(id));
  }
  std::sort(loads.rbegin(), loads.rend());
  return loads;
}

std::string written(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  return path;
}

TEST(BenchRouting, BalancedLoadsAreEqual) {
  for (const auto& [experts, k] : {std::pair<int64_t, int64_t>{128, 8}, {8, 2}, {5, 5}, {7, 1}}) {
    const double mean = static_cast<double>(kTokens * k) / static_cast<double>(experts);
    for (const double load : loads_of(BenchRouting("balanced"), experts, k)) EXPECT_NEAR(load, mean, 4);
  }
}

TEST(BenchRouting, ZipfFollowsThePowerAsFarAsATokenChoosesAnExpertOnce) {
  const std::vector<double> loads = loads_of(BenchRouting("zipf"), 128, 8);
  EXPECT_DOUBLE_EQ(loads[0], kTokens) << "its share would be above one of eight";
  EXPECT_NEAR(loads[40] / loads[80], 81.0 / 41.0, 0.05);
  const std::vector<double> steep = loads_of(BenchRouting("zipf:2"), 16, 1);
  EXPECT_NEAR(steep[0] / steep[1], 4, 0.1);
  const std::vector<double> even = loads_of(BenchRouting("zipf:0"), 16, 2);
  EXPECT_NEAR(even.front(), even.back(), 8);
}

TEST(BenchRouting, ARunsLoadsAreKeptAndInterpolated) {
  const TestFolder folder;
  const std::string file = written(folder / "expert_load.jsonl",
                                   "{\"step\": 1, \"layers\": [[1, 0]]}\n"
                                   "{\"step\": 2, \"layers\": [[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]]}\n");
  const BenchRouting routing(file);
  const std::vector<double> loads = loads_of(routing, 4, 2);
  EXPECT_NEAR(loads[0], 0.4 * 2 * kTokens, 4);
  EXPECT_NEAR(loads[3], 0.1 * 2 * kTokens, 4);
  for (const double load : loads_of(routing, 4, 2, 1)) EXPECT_NEAR(load, 0.25 * 2 * kTokens, 4);
  const std::vector<double> more = loads_of(routing, 16, 2, 2);
  EXPECT_NEAR(more[0] / more[15], 4, 0.2);
  EXPECT_TRUE(std::is_sorted(more.rbegin(), more.rend()));
}

TEST(BenchRouting, LayersDifferAndSeedsAreKept) {
  const BenchRouting routing("zipf");
  EXPECT_EQ(routing.draw(3, 64, 32, 4, 7), routing.draw(3, 64, 32, 4, 7));
  EXPECT_NE(routing.draw(3, 64, 32, 4, 7), routing.draw(4, 64, 32, 4, 7));
  EXPECT_NE(routing.draw(3, 64, 32, 4, 7), routing.draw(3, 64, 32, 4, 8));
  EXPECT_FALSE(BenchRouting("router").draws());
}

TEST(BenchRouting, WhatIsNoRoutingIsRefused) {
  const auto refused = [](const std::string& text) {
    try {
      BenchRouting routing(text);
    } catch (const UserError& error) {
      return text_of(error);
    }
    return std::string();
  };
  EXPECT_THAT(refused("zipf:x"), HasSubstr("'x' is not an exponent | --routing"));
  EXPECT_THAT(refused("zipf:-1"), HasSubstr("give a number from 0 to 10"));
  EXPECT_THAT(refused("even"), HasSubstr("balanced, zipf"));
  for (const char* text : {"", "{}", "[1]", "{\"layers\": []}", "{\"layers\": [[0, 0]]}", "{\"layers\": [[1, \"a\"]]}",
                           "{\"layers\": [[-1, 2]]}"}) {
    const TestFolder folder;
    EXPECT_THAT(refused(written(folder / "loads.jsonl", text)), HasSubstr("no shares of experts in its last row"))
        << text;
  }
}

}  // namespace
}  // namespace hone
