// What packing a base costs: the line of the log, the groups, and that the numbers are those of evaluations.
#include "train/plan/base_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/files/root_testing.h"
#include "report/console.h"
#include "train/run/evaluation_run.h"
#include "train/run/loaded_run.h"

namespace hone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

RunConfig packed_in(const std::string& base, const std::string& experts = "auto") {
  RunConfig config;
  config.model.base_weight_dtype = BaseFormat::parse(base, "base");
  config.model.expert_weight_dtype = ExpertFormat::parse(experts, "experts");
  return config;
}

TEST(BaseCostText, SaysBothLossesAndTheWayOutOfADearBase) {
  EXPECT_EQ(base_cost_text({.packed = 3.03, .dense = 3, .formats = "nf4"}, packed_in("nf4")),
            "first batch: loss 3.0300 on the packed base (nf4), 3.0000 on the dense one: +1.0 %");
  EXPECT_EQ(base_cost_text({.packed = 2.97, .dense = 3, .formats = "nf4"}, packed_in("nf4")),
            "first batch: loss 2.9700 on the packed base (nf4), 3.0000 on the dense one: -1.0 %");
  EXPECT_EQ(base_cost_text({.packed = 3, .dense = 3, .formats = "fp8"}, packed_in("fp8")),
            "first batch: loss 3.0000 on the packed base (fp8), the same on the dense one: packing it loses nothing");
  EXPECT_EQ(base_cost_text({.packed = 3.41, .dense = 3.018, .formats = "nf4"}, packed_in("nf4")),
            "first batch: loss 3.4100 on the packed base (nf4), 3.0180 on the dense one: +13.0 %, more than 2 %: "
            "base_weight_dtype: int8 or fp8 loses little in twice the memory; base_weight_keep leaves the weights that "
            "matter most as they are");
  EXPECT_THAT(
      base_cost_text({.packed = 4, .dense = 3, .formats = "mxfp4"}, packed_in("mxfp4")),
      HasSubstr("+33.3 %, more than 2 %: base_weight_dtype: nf4 mostly loses less in as little memory, int8 or fp8 "
                "little in twice as much; base_weight_keep"));
  EXPECT_THAT(base_cost_text({.packed = 4, .dense = 3, .formats = "fp8"}, packed_in("fp8")),
              HasSubstr("more than 2 %: base_weight_dtype: int8 loses less in as much memory; base_weight_keep"));
  EXPECT_THAT(
      base_cost_text({.packed = 4, .dense = 3, .formats = "experts int4"}, packed_in("dtype", "int4")),
      HasSubstr("more than 2 %: expert_weight_dtype: nf4 mostly loses less in as little memory, int8 or fp8 little in "
                "twice as much; expert_weight_dtype: auto leaves the experts as they are"));
  EXPECT_THAT(base_cost_text({.packed = NAN, .dense = 3, .formats = "nf4"}, packed_in("nf4")),
              HasSubstr("loss NaN on the packed base (nf4), 3.0000 on the dense one: NaN, more than 2 %"));
}

TEST(BaseCostText, GroupsThatGainMostComeFirst) {
  const BaseCost cost{.packed = 3.4, .dense = 3, .formats = "nf4"};
  EXPECT_THAT(kept_group_texts(cost, {{.setting = "a", .weights = {}, .loss = 3.2, .bytes = 2'000'000},
                                      {.setting = "b", .weights = {}, .loss = 3.39, .bytes = 1},
                                      {.setting = "c", .weights = {}, .loss = 3.12, .bytes = 300'000'000}}),
              ElementsAre("first batch: with c   loss +4.0 % instead of +13.3 %, 300 MB more",
                          "first batch: with a   loss +6.7 % instead of +13.3 %, 2.0 MB more"));
  EXPECT_THAT(kept_group_texts(cost, {{.setting = "b", .weights = {}, .loss = 3.39, .bytes = 1}}),
              ElementsAre("first batch: no group of weights alone wins back a tenth of that"));
  EXPECT_THAT(kept_group_texts(cost, {}), IsEmpty());
}

class BaseCostOfRun : public ::testing::Test {
 protected:
  BaseCostOfRun() {
    config_.model.model_name_or_path = std::string(HONE_SOURCE_DIR) + "/tests/fixtures/goldens/qwen3_moe/model";
    config_.model.dtype = DType::kF32;
    config_.model.finetuning_type = FinetuningType::kLora;
    config_.lora.target_modules = {"attention"};
    std::string rows;
    for (int row = 0; row < 8; ++row) rows += R"({"input_ids": [1, 2, 3, 4, 5, 6, 7, )" + std::to_string(row) + "]}\n";
    config_.data.datasets.push_back(
        {.path = root_.write("data.jsonl", rows).string(), .type = "auto", .samples = {}, .name = "data"});
    config_.data.packing = false;
    config_.schedule.max_steps = 2;
    config_.schedule.per_device_train_batch_size = config_.schedule.global_batch_size = 4;
    config_.eval.per_device_eval_batch_size = 4;
    config_.machine.device = "cpu";
    config_.machine.threads = 1;
    config_.report.output_dir = (root_ / "out").string();
  }

  void pack(const std::string& base, const std::string& experts = "auto") {
    config_.model.base_weight_dtype = BaseFormat::parse(base, "base");
    config_.model.expert_weight_dtype = ExpertFormat::parse(experts, "experts");
  }
  DescribedRun described(RunContext& context) const { return describe_run(describe_model(config_, context), context); }
  /// By hone eval's way, of the run's first micro-batch.
  double evaluated(const std::string& base, const std::string& experts) {
    RunContext context(config_.machine, logger_);
    const std::vector<MicroBatch> batch = {described(context).loader->step(0).micro_batches.front()};
    RunConfig config = config_;
    config.model.base_weight_dtype = BaseFormat::parse(base, "base");
    config.model.expert_weight_dtype = ExpertFormat::parse(experts, "experts");
    DescribedRun run = describe_evaluation(config, context, {});
    run.eval_batches = batch;
    RankGroup group(context);
    return load_evaluation(std::move(run), group).evaluate().loss;
  }
  std::optional<BaseCost> measured(bool tries = false) {
    RunContext context(config_.machine, logger_);
    DescribedRun run = described(context);
    RankGroup group(context);
    return measure_base_cost(plan_run(run, group), tries);
  }
  std::vector<std::string> settings() {
    RunContext context(config_.machine, logger_);
    std::vector<std::string> result;
    for (const KeptGroup& group : groups_of_base(described(context))) result.push_back(group.setting);
    return result;
  }
  /// The adapters' bits after a step.
  std::vector<float> trained(bool measures) {
    RunContext context(config_.machine, logger_);
    DescribedRun run = described(context);
    RankGroup group(context);
    PlannedRun planned = plan_run(run, group);
    EXPECT_EQ(measures && measure_base_cost(planned, true), measures);
    const LoadedRun loaded = load_planned(planned, {});
    loaded.engine().accumulate(run.loader->step(0), 0);
    loaded.engine().update({.learning_rate = 1e-2, .index = 0});
    std::vector<float> values;
    for (const Parameter* p : loaded.store().trainable()) {
      const auto own = context.stream.download<float>(p->value().whole());
      values.insert(values.end(), own.begin(), own.end());
    }
    return values;
  }

  testing::TestRoot root_;
  RunConfig config_;
  Console console_{Terminal{.seen = false}};
  Logger logger_{console_, LogLevel::kOff};
};

TEST_F(BaseCostOfRun, TheLossesAreThoseOfEvaluations) {
  struct Held {
    std::string base, experts, formats;
  };
  for (const Held& held : {Held{"nf4", "auto", "nf4"}, Held{"mxfp4", "auto", "mxfp4"},
                           Held{"dtype", "nf4", "experts nf4"}, Held{"fp8", "nf4", "fp8, experts nf4"}}) {
    SCOPED_TRACE(held.formats);
    pack(held.base, held.experts);
    const std::optional<BaseCost> cost = measured();
    ASSERT_TRUE(cost);
    EXPECT_EQ(cost->formats, held.formats);
    EXPECT_DOUBLE_EQ(cost->packed, evaluated(held.base, held.experts));
    EXPECT_DOUBLE_EQ(cost->dense, evaluated("dtype", "auto"));
    EXPECT_NE(cost->packed, cost->dense);
    config_.machine.cpu_offload = {OffloadPart::kParams};
    const std::optional<BaseCost> streamed = measured();
    config_.machine.cpu_offload.clear();
    ASSERT_TRUE(streamed);
    EXPECT_EQ(streamed->packed, cost->packed) << "a layer at a time";
    EXPECT_EQ(streamed->dense, cost->dense);
  }
}

TEST_F(BaseCostOfRun, NothingIsMeasuredOfABaseAsItsFilesHaveIt) {
  for (const char* base : {"dtype", "auto"}) {
    pack(base);
    EXPECT_FALSE(measured()) << base;
  }
}

TEST_F(BaseCostOfRun, LeavesTheRunAsItWas) {
  config_.lora.dropout = 0.1;
  pack("nf4");
  const std::vector<float> without = trained(false), with = trained(true);
  ASSERT_GT(with.size(), 100u);
  ASSERT_EQ(with.size(), without.size());
  EXPECT_EQ(std::memcmp(with.data(), without.data(), with.size() * sizeof(float)), 0);
}

TEST_F(BaseCostOfRun, GroupsAreModulesAndTheFirstAndLastLayer) {
  pack("nf4");
  EXPECT_THAT(settings(),
              ElementsAre(R"(base_weight_keep: ['re:\.mlp\.experts\.[^.]+$'])",
                          R"(base_weight_keep: ['re:\.self_attn\.[^.]+$'])", R"(base_weight_keep: ['re:layers\.0\.'])",
                          R"(base_weight_keep: ['re:layers\.1\.'])"));
  config_.model.base_weight_keep = {"re:'?experts"};
  EXPECT_THAT(settings(), ElementsAre(R"(base_weight_keep: ['re:''?experts', 're:layers\.0\.'])",
                                      R"(base_weight_keep: ['re:''?experts', 're:layers\.1\.'])"));
  config_.model.base_weight_keep.clear();
  pack("dtype", "nf4");
  EXPECT_THAT(settings(), IsEmpty()) << "all that is packed";
  pack("fp8", "nf4");
  EXPECT_THAT(settings(), SizeIs(3)) << "attention and two layers: experts would be packed as fp8";
}

}  // namespace
}  // namespace hone
