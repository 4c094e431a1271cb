#include "config/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <concepts>
#include <set>
#include <string>

#include "core/base/named_choice.h"
#include "core/text/json.h"
#include "data/dataset/block_builder.h"
#include "text/chat_mask.h"

namespace hone {
namespace {

using ::testing::ElementsAre;

TEST(NamedChoice, NamesAndValuesAreThoseOfOneTable) {
  EXPECT_EQ(name_of(ZeroStage::kGradients), "2");
  EXPECT_EQ(choice_called<ZeroStage>("3"), ZeroStage::kValues);
  EXPECT_EQ(name_of(Checkpointing()), "auto");
  EXPECT_EQ(choice_called<Checkpointing>("false"), RecomputeLevel::kNone);
  EXPECT_THAT(names_of(all_choices<Cadence>()), ElementsAre("no", "steps", "epoch", "best"));
  EXPECT_EQ(fmt::format("{} {:>5}", OptimizerName::kAdamw8bit, ExpertsOn::kDevice), "adamw_8bit   gpu");
}

TEST(NamedChoice, AValueWithoutARowStatesNothing) { EXPECT_EQ(name_of(AdapterLayout::kAsTrained), ""); }

template <class Value>
concept TakesText = requires(Value value) {
  value == "text";
};

TEST(NamedChoice, IsNeitherTextNorANumber) {
  EXPECT_FALSE(TakesText<FinetuningType>);
  EXPECT_FALSE((std::convertible_to<FinetuningType, Json>)) << "JSON would have the number";
}

template <class Value>
class ChoiceTable : public ::testing::Test {};
using Tables = ::testing::Types<FinetuningType, Checkpointing, AuxLossReduction, UnmatchedExclusion, WholeModule,
                                LoraInit, ExpertLora, AdapterLayout, HistoryRewrites, DataChecks, LrScheduler,
                                DecayShape, OptimizerName, NanPolicy, GraphUse, ZeroStage, OffloadPart, ExpertsOn,
                                FetchWay, ReportTarget, Cadence, ModelMetric, Overlength, TrainOn>;
TYPED_TEST_SUITE(ChoiceTable, Tables);

TYPED_TEST(ChoiceTable, HasEachNameOnce) {
  std::set<std::string> names;
  for (const TypeParam& value : all_choices<TypeParam>()) {
    EXPECT_TRUE(names.insert(std::string(name_of(value))).second) << name_of(value);
    EXPECT_TRUE(choice_called<TypeParam>(name_of(value)) == value) << name_of(value);
  }
}

}  // namespace
}  // namespace hone
