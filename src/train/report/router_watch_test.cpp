#include "train/report/router_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/philox.h"
#include "core/text/json.h"

namespace hone {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kExperts = 8;

/// Two layers with 4096 choices each: `shares` in layer 0, even in layer 1.
RoutingLoad load_of(const std::vector<double>& shares, float entropy = 1.5f) {
  double sum = 0;
  for (const double share : shares) sum += share;
  RoutingLoad load{2, kExperts, {}, {entropy, 1.5f}};
  for (const double share : shares) load.counts.push_back(static_cast<float>(std::round(4096 * share / sum)));
  load.counts.insert(load.counts.end(), kExperts, 512.0f);
  return load;
}

const std::vector<double> kUneven = {8, 5, 3, 2, 2, 2, 1, 1};

constexpr int kSettled = 50;  // steps

/// The alarms of `steps` steps with the same load and loss.
std::vector<std::string> run(RouterWatch& watch, const RoutingLoad& load, int steps, double loss = 2) {
  std::vector<std::string> all;
  for (int i = 0; i < steps; ++i) {
    for (std::string& alarm : watch.add(load, loss)) all.push_back(std::move(alarm));
  }
  return all;
}

/// One layer's load of `tokens` choices with sampling noise.
RoutingLoad drawn(const std::vector<double>& shares, PhiloxSequence& random, int64_t tokens = 4096) {
  RoutingLoad load{1, static_cast<int64_t>(shares.size()), std::vector<float>(shares.size()), {1.5f}};
  double sum = 0;
  for (const double share : shares) sum += share;
  for (int64_t i = 0; i < tokens; ++i) {
    double at = static_cast<double>(random.below(1 << 30)) / (1 << 30) * sum;
    size_t e = 0;
    while (e + 1 < shares.size() && at >= shares[e]) at -= shares[e++];
    load.counts[e] += 1;
  }
  return load;
}

std::vector<double> even(size_t experts) { return std::vector<double>(experts, 1.0); }

TEST(LayerLoads, MeasureHowEvenTheExpertsAreUsed) {
  const RoutingLoad load{2, 4, {4, 4, 0, 0, 1, 1, 1, 1}, {0.5f, 1.0f}};
  const std::vector<LayerLoad> loads = layer_loads(load);
  EXPECT_DOUBLE_EQ(loads[0].max_over_mean, 2);
  EXPECT_NEAR(loads[0].effective_experts, 2, 1e-12);
  EXPECT_EQ(loads[0].dead, 2);
  EXPECT_DOUBLE_EQ(loads[0].entropy, 0.5);
  EXPECT_DOUBLE_EQ(loads[1].max_over_mean, 1);
  EXPECT_NEAR(loads[1].effective_experts, 4, 1e-12);
  EXPECT_EQ(loads[1].dead, 0);
}

TEST(RouterWatch, ARunThatStaysAsUnevenAsItBeganIsLeftAlone) {
  RouterWatch watch({.experts_per_token = 2, .trains_router = true});
  EXPECT_THAT(run(watch, load_of(kUneven), 300), IsEmpty());
}

TEST(RouterWatch, ExpertsThatDieAreNamedOnceWithTheirLayerAndAdvice) {
  RouterWatch watch({.experts_per_token = 2, .trains_router = true, .aux_loss_coef = 0.001});
  EXPECT_THAT(run(watch, load_of(kUneven), kSettled), IsEmpty());
  std::vector<double> shares = kUneven;
  shares[6] = shares[7] = 0;
  EXPECT_THAT(run(watch, load_of(shares), 20),
              ElementsAre(AllOf(HasSubstr("2 experts died in MoE layer 0"),
                                HasSubstr("raise router_aux_loss_coef from 0.001 to 0.01"))));
  EXPECT_THAT(run(watch, load_of(shares), 300), IsEmpty()) << "once a run";
}

TEST(RouterWatch, AnExpertThatNeverHadTokensDoesNotDie) {
  std::vector<double> shares = kUneven;
  shares[7] = 0;
  RouterWatch watch({.experts_per_token = 2});
  EXPECT_THAT(run(watch, load_of(shares), 100), IsEmpty());
}

TEST(RouterWatch, OneStarvedExpertOfSixteenIsNamedWithinTwentySteps) {
  PhiloxSequence random(3);
  RouterWatch watch({.experts_per_token = 2, .trains_router = true});
  std::vector<double> shares = even(16);
  for (int step = 0; step < 50; ++step) ASSERT_THAT(watch.add(drawn(shares, random), 2), IsEmpty()) << step;
  shares[11] = 0;
  std::vector<std::string> alarms;
  for (int step = 0; step < 20; ++step) {
    for (const std::string& alarm : watch.add(drawn(shares, random), 2)) alarms.push_back(alarm);
  }
  EXPECT_THAT(alarms, ElementsAre(HasSubstr("1 expert died in MoE layer 0")));
}

TEST(RouterWatch, ATopOneThatTakesAllIsNamedWithinTwentySteps) {
  PhiloxSequence random(4);
  for (const bool second_is_even : {false, true}) {
    RouterWatch watch({.experts_per_token = 2, .trains_router = true});
    for (int step = 0; step < 50; ++step) ASSERT_THAT(watch.add(drawn(even(16), random), 2), IsEmpty()) << step;
    std::vector<double> shares(16, second_is_even ? 1.0 / 15 : 0.0);  // each token's first choice is expert 5
    shares[5] = 1;
    if (!second_is_even) shares[6] = 1;
    std::vector<std::string> alarms;
    for (int step = 0; step < 20; ++step) {
      for (const std::string& alarm : watch.add(drawn(shares, random), 2)) alarms.push_back(alarm);
    }
    EXPECT_THAT(alarms, ElementsAre(AnyOf(HasSubstr("expert collapse"), HasSubstr("the busiest expert"))))
        << second_is_even;
  }
}

TEST(RouterWatch, ImbalanceAndCollapseAreRelativeToTheSettledRun) {
  RouterWatch watch({.experts_per_token = 2, .trains_router = true});
  EXPECT_THAT(run(watch, load_of(even(8)), kSettled), IsEmpty());
  const std::vector<std::string> alarms = run(watch, load_of({10, 10, 1, 1, 1, 1, 1, 1}), 60);
  EXPECT_THAT(alarms, ElementsAre(AllOf(HasSubstr("imbalance in MoE layer 0"), HasSubstr("1.0 before"),
                                        HasSubstr("set router_aux_loss_coef: 0.001"))));
  EXPECT_THAT(run(watch, load_of({30, 30, 1, 1, 1, 1, 1, 1}), 60),
              ElementsAre(AllOf(HasSubstr("expert collapse in MoE layer 0"), HasSubstr("8.0 before"))));
}

TEST(RouterWatch, AllTokensOnTheFewestExpertsIsACollapseBeforeTheRunHasSettled) {
  RouterWatch watch({.experts_per_token = 2});
  EXPECT_THAT(run(watch, load_of({1, 1, 0, 0, 0, 0, 0, 0}), 8),
              ElementsAre(HasSubstr("layer 0 uses as if 2.0 of 8 experts.")));
  RouterWatch all({.experts_per_token = 8});
  EXPECT_THAT(run(all, load_of(even(8)), 80), IsEmpty()) << "every token goes to every expert";
}

TEST(RouterWatch, AnEntropyThatHalvesIsSaidAndFrozenRoutersGetOtherAdvice) {
  RouterWatch watch({.experts_per_token = 2});
  run(watch, load_of(kUneven, 1.6f), kSettled);
  EXPECT_THAT(run(watch, load_of(kUneven, 0.7f), 80),
              ElementsAre(AllOf(HasSubstr("the entropy dropped in MoE layer 0"), HasSubstr("1.60 before"),
                                HasSubstr("the routers are frozen"))));
}

TEST(RouterWatch, RoutersThatSaturateAtTheStartAreNamed) {
  RouterWatch watch({.experts_per_token = 2, .trains_router = true});
  EXPECT_THAT(run(watch, load_of(kUneven, 1.6f), 1), IsEmpty());
  EXPECT_THAT(run(watch, load_of(kUneven, 0.1f), 7),
              ElementsAre(AllOf(HasSubstr("the entropy dropped in MoE layer 0"), HasSubstr("1.60 at the start"))));
}

TEST(RouterWatch, WhileTheLossFallsExpertsMayDie) {
  RouterWatch watch({.experts_per_token = 2, .trains_router = true});
  std::vector<double> shares = kUneven;
  double loss = 7;
  for (int step = 0; step < 120; ++step, loss *= 0.99) {
    if (step == 60) shares[7] = 0;
    ASSERT_THAT(watch.add(load_of(shares), loss), IsEmpty()) << step;
  }
}

TEST(RouterWatch, ALayerThatStillMovesHasNoReference) {
  PhiloxSequence random(5);
  RouterWatch watch({.experts_per_token = 2, .trains_router = true});
  for (int step = 0; step < 160; ++step) {  // experts grow and shrink alternately, down to zero
    std::vector<double> shares(16);
    for (size_t e = 0; e < 16; ++e) shares[e] = std::max(0.0, std::sin(step / 12.0 + static_cast<double>(e)));
    ASSERT_THAT(watch.add(drawn(shares, random), 2), IsEmpty()) << step;
  }
}

TEST(RouterWatch, ASlowDriftIsFollowed) {
  RouterWatch watch({.experts_per_token = 2, .trains_router = true});
  run(watch, load_of(even(8)), kSettled);
  for (int step = 0; step < 800; ++step) {
    std::vector<double> shares = even(8);
    shares[0] = 1 + step / 200.0;  // finally three times the mean
    ASSERT_THAT(watch.add(load_of(shares), 2), IsEmpty()) << step;
  }
}

TEST(RouterWatch, FewTokensMakeLongBlocks) {
  RouterWatch watch({.experts_per_token = 2});
  RoutingLoad few{1, kExperts, {16, 0, 0, 0, 0, 0, 0, 0}, {1.0f}};
  EXPECT_THAT(run(watch, few, 31), IsEmpty());
  EXPECT_THAT(run(watch, few, 1), ElementsAre(HasSubstr("expert collapse"))) << "512 choices, 64 an expert, make one";
}

TEST(RouterWatch, AResumedRunGoesOnAsIfItHadNotStopped) {
  RouterWatch whole({.experts_per_token = 2}), first({.experts_per_token = 2}), second({.experts_per_token = 2});
  std::vector<double> shares = kUneven;
  shares[7] = 0;
  const auto play = [&](RouterWatch& watch, int begin, int end) {
    std::vector<std::string> all;
    for (int i = begin; i < end; ++i) {
      for (std::string& alarm : watch.add(load_of(i < 52 ? kUneven : shares), 2)) {
        all.push_back(std::to_string(i) + alarm);
      }
    }
    return all;
  };
  const std::vector<std::string> expected = play(whole, 0, 250);
  std::vector<std::string> got = play(first, 0, 60);
  second.restore(Json::parse(first.state().dump()), 2, kExperts);
  EXPECT_EQ(second.state(), first.state());
  for (std::string& alarm : play(second, 60, 250)) got.push_back(std::move(alarm));
  EXPECT_EQ(got, expected);
  EXPECT_EQ(expected.size(), 1u);
  EXPECT_EQ(second.state(), whole.state());
  second.restore(Json::parse(first.state().dump()), 3, kExperts);
  EXPECT_EQ(second.state(), whole.state()) << "the state of another model is not taken";
  for (const Json& other : {Json{{"steps", "x"}}, Json{{"baseline", 1}}, Json{{"recent", 3}, {"block", 4}}}) {
    second.restore(other, 2, kExperts);
    EXPECT_EQ(second.state(), whole.state());
  }
}

TEST(RouterWatch, TheBalanceNamesTheEndsAndTheDeadExperts) {
  RouterWatch watch({.experts_per_token = 2});
  watch.add(load_of({2, 2, 8, 1, 1, 1, 1, 0}), 2);
  EXPECT_EQ(watch.balance(),
            "routers: a layer's busiest expert has 2.5 times the mean load on average, 4.0 at most (expert 2 of layer "
            "0), the least loaded 0.00 (expert 7 of layer 0); 1 dead expert in layer 0");
  RouterWatch none({.experts_per_token = 2});
  none.add(load_of({2, 1, 1, 1, 1, 1, 1, 0.5}), 2);
  EXPECT_THAT(none.balance(), HasSubstr("the least loaded 0.47 (expert 7 of layer 0); no dead experts"));
  const std::vector<double> shares = watch.shares()[0].get<std::vector<double>>();
  EXPECT_NEAR(shares[2], 0.5, 1e-6);
  EXPECT_EQ(shares[7], 0);
}

}  // namespace
}  // namespace hone
