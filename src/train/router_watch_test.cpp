#include "train/router_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace hone {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kExperts = 8;

/// Two layers: shares of layer 0, layer 1 even; 4096 choices each.
RoutingLoad load_of(const std::vector<double>& shares, float entropy = 1.5f) {
  double sum = 0;
  for (const double share : shares) sum += share;
  RoutingLoad load{2, kExperts, {}, {entropy, 1.5f}};
  for (const double share : shares) load.counts.push_back(static_cast<float>(std::round(4096 * share / sum)));
  load.counts.insert(load.counts.end(), kExperts, 512.0f);
  return load;
}

const std::vector<double> kUneven = {8, 5, 3, 2, 2, 2, 1, 1};

/// Alarms of `steps` steps of one load.
std::vector<std::string> run(RouterWatch& watch, const RoutingLoad& load, int steps) {
  std::vector<std::string> all;
  for (int i = 0; i < steps; ++i) {
    for (std::string& alarm : watch.add(load)) all.push_back(std::move(alarm));
  }
  return all;
}

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

TEST(RouterWatch, ExpertsThatDieAreNamedWithTheirLayerAndAdvice) {
  RouterWatch watch({.experts_per_token = 2, .trains_router = true, .aux_loss_coef = 0.001});
  EXPECT_THAT(run(watch, load_of(kUneven), 20), IsEmpty());
  std::vector<double> shares = kUneven;
  shares[6] = shares[7] = 0;
  EXPECT_THAT(run(watch, load_of(shares), 90),
              ElementsAre(AllOf(HasSubstr("2 experts died in MoE layer 0"),
                                HasSubstr("raise router_aux_loss_coef from 0.001 to 0.01"))));
  // It is said again, but not at every step.
  EXPECT_EQ(run(watch, load_of(shares), 200).size(), 2u);
}

TEST(RouterWatch, AnExpertThatNeverHadTokensDoesNotDie) {
  std::vector<double> shares = kUneven;
  shares[7] = 0;
  RouterWatch watch({.experts_per_token = 2});
  EXPECT_THAT(run(watch, load_of(shares), 100), IsEmpty());
}

TEST(RouterWatch, ImbalanceAndCollapseAreRelativeToTheStart) {
  RouterWatch watch({.experts_per_token = 2, .trains_router = true});
  EXPECT_THAT(run(watch, load_of({1, 1, 1, 1, 1, 1, 1, 1}), 5), IsEmpty());
  const std::vector<std::string> alarms = run(watch, load_of({10, 10, 1, 1, 1, 1, 1, 1}), 60);
  EXPECT_THAT(alarms, ElementsAre(AllOf(HasSubstr("imbalance in MoE layer 0"), HasSubstr("1.0 at the start"),
                                        HasSubstr("set router_aux_loss_coef: 0.001"))));
  const std::vector<std::string> worse = run(watch, load_of({30, 30, 1, 1, 1, 1, 1, 1}), 60);
  EXPECT_THAT(worse, ElementsAre(AllOf(HasSubstr("expert collapse in MoE layer 0"), HasSubstr("8.0 at the start")),
                                 HasSubstr("imbalance")))
      << "which is still there a hundred steps later";
}

TEST(RouterWatch, AnEntropyThatHalvesIsSaidAndFrozenRoutersGetOtherAdvice) {
  RouterWatch watch({.experts_per_token = 2});
  run(watch, load_of(kUneven, 1.6f), 10);
  EXPECT_THAT(run(watch, load_of(kUneven, 0.7f), 80),
              ElementsAre(AllOf(HasSubstr("the entropy dropped in MoE layer 0"), HasSubstr("1.60 at the start"),
                                HasSubstr("the routers are frozen"))));
}

TEST(RouterWatch, FewTokensAreNoBaseline) {
  RouterWatch watch({.experts_per_token = 2});
  RoutingLoad few{1, kExperts, {16, 0, 0, 0, 0, 0, 0, 0}, {1.0f}},
      other{1, kExperts, {0, 16, 0, 0, 0, 0, 0, 0}, {1.0f}};
  EXPECT_THAT(run(watch, few, 16), IsEmpty());
  EXPECT_THAT(run(watch, other, 16), IsEmpty()) << "512 choices, 64 an expert, make one";
}

TEST(RouterWatch, AResumedRunGoesOnAsIfItHadNotStopped) {
  RouterWatch whole({.experts_per_token = 2}), first({.experts_per_token = 2}), second({.experts_per_token = 2});
  std::vector<double> shares = kUneven;
  shares[7] = 0;
  const auto play = [&](RouterWatch& watch, int begin, int end) {
    std::vector<std::string> all;
    for (int i = begin; i < end; ++i) {
      for (std::string& alarm : watch.add(load_of(i < 12 ? kUneven : shares))) all.push_back(std::to_string(i) + alarm);
    }
    return all;
  };
  const std::vector<std::string> expected = play(whole, 0, 250);
  std::vector<std::string> got = play(first, 0, 40);
  second.restore(Json::parse(first.state().dump()), 2, kExperts);
  EXPECT_EQ(second.state(), first.state());
  for (std::string& alarm : play(second, 40, 250)) got.push_back(std::move(alarm));
  EXPECT_EQ(got, expected);
  EXPECT_GT(expected.size(), 1u);
  second.restore(Json::parse(first.state().dump()), 3, kExperts);
  EXPECT_EQ(second.state(), whole.state()) << "the state of another model is not taken";
  second.restore(Json{{"steps", "x"}}, 2, kExperts);
  EXPECT_EQ(second.state(), whole.state());
}

TEST(RouterWatch, TheHeatMapHasARowForEveryLayerOrGroupOfLayers) {
  RouterWatch watch({.experts_per_token = 2});
  watch.add(load_of({4, 1, 1, 1, 1, 0, 0, 0}));
  const HeatMap map = watch.heat_map();
  EXPECT_THAT(map.row_labels, ElementsAre("layer 0", "layer 1"));
  ASSERT_EQ(map.values.size(), 2u * kExperts);
  EXPECT_DOUBLE_EQ(map.values[0], 1);
  EXPECT_DOUBLE_EQ(map.values[5], 0);
  EXPECT_NEAR(map.values[kExperts], 0.25, 1e-3);
  EXPECT_EQ(map.high_label, "4.0 times the mean");
  RoutingLoad deep{48, 2, std::vector<float>(96, 1.0f), std::vector<float>(48, 0.1f)};
  deep.counts[3] = 3;  // layer 1
  RouterWatch many({.experts_per_token = 1});
  many.add(deep);
  EXPECT_EQ(many.heat_map().row_labels.size(), 24u);
  EXPECT_EQ(many.heat_map().row_labels.front(), "layers 0-1");
  EXPECT_DOUBLE_EQ(many.heat_map().values[1], 1);
}

}  // namespace
}  // namespace hone
