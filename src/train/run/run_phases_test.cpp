// Tests of the phases of a run, each created from the one before, and of their contents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/files/root_testing.h"
#include "report/console.h"
#include "train/plan/run_warnings.h"
#include "train/run/evaluation_run.h"
#include "train/run/loaded_run.h"

namespace hone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunPhases : public ::testing::Test {
 protected:
  RunPhases() {
    config_.model.model_name_or_path = std::string(HONE_SOURCE_DIR) + "/tests/fixtures/goldens/qwen3_moe/model";
    config_.model.dtype = DType::kF32;
    std::string rows;
    for (int row = 0; row < 8; ++row) rows += R"({"input_ids": [1, 2, 3, 4, 5, 6, 7, )" + std::to_string(row) + "]}\n";
    config_.data.datasets.push_back(
        {.path = root_.write("data.jsonl", rows).string(), .type = "auto", .samples = {}, .name = "data"});
    config_.data.packing = false;
    config_.schedule.max_steps = 2;
    config_.schedule.per_device_train_batch_size = config_.schedule.global_batch_size = 4;
    config_.machine.device = "cpu";
    config_.machine.threads = 1;
    config_.report.output_dir = (root_ / "out").string();
  }

  DescribedRun described(RunContext& context) const { return describe_run(describe_model(config_, context), context); }

  testing::TestRoot root_;
  RunConfig config_;
  Console console_{Terminal{.seen = false}};
  Logger logger_{console_, LogLevel::kOff};
};

TEST_F(RunPhases, ADescriptionLeavesNothingOpen) {
  RunContext context(config_.machine, logger_);
  const DescribedRun run = described(context);
  EXPECT_TRUE(run.config.data.max_length && run.config.model.router_aux_loss_coef);
  EXPECT_EQ(run.config.checkpoint.save_steps, 2) << "once an epoch: 8 rows in steps of 4";
  EXPECT_EQ(run.schedule.total_steps, 2);
  EXPECT_EQ(run.data().train.size(), 8);
  EXPECT_FALSE(run.model->store().all().front().value().stored().payload.defined()) << "a weight has memory";
}

TEST_F(RunPhases, SettingsThatAreSeldomMeantAreNamed) {
  RunContext context(config_.machine, logger_);
  const auto warnings = [&] { return doubtful_settings(described(context)); };
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("the run has 2 optimizer steps, too few")));
  config_.schedule.max_steps = 100;
  EXPECT_THAT(warnings(), IsEmpty());
  config_.schedule.learning_rate = 0.002;
  config_.optim.weight_decay = 499;
  EXPECT_THAT(warnings(), IsEmpty());
  config_.optim.weight_decay = 500;
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("weight_decay 500 × learning rate 0.00200 is 1.00")));
  config_.optim.weight_decay = 0;
  config_.schedule.min_lr_ratio = 1;
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("min_lr 0.00200 is the learning rate itself, so cosine never falls")));
  config_.schedule.lr_scheduler_type = LrScheduler::kConstant;
  EXPECT_THAT(warnings(), IsEmpty());
  config_.schedule.per_device_train_batch_size = config_.schedule.global_batch_size = 8;
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("each step reads the whole data set (8 samples)")));
  config_.schedule.max_steps = std::nullopt;
  config_.schedule.num_train_epochs = 3;
  EXPECT_THAT(warnings(), ElementsAre(HasSubstr("3 optimizer steps, too few for a model to learn much: raise "
                                                "num_train_epochs"),
                                      HasSubstr("each step reads the whole data set")));
}

TEST_F(RunPhases, HalfTheBatchIsTheSameStep) {
  RunContext context(config_.machine, logger_);
  DescribedRun run = described(context);
  const int64_t tokens = run.loader->step(0).micro_batches.front().tokens();
  ASSERT_TRUE(halve_batch(run));
  EXPECT_EQ(run.config.schedule.per_device_train_batch_size, 2);
  EXPECT_EQ(run.config.schedule.gradient_accumulation_steps, 2);
  const StepData step = run.loader->step(0);
  ASSERT_EQ(step.micro_batches.size(), 2u);
  EXPECT_EQ(step.micro_batches[0].tokens() + step.micro_batches[1].tokens(), tokens);
  ASSERT_TRUE(halve_batch(run));
  EXPECT_FALSE(halve_batch(run)) << "a batch of one";
}

TEST_F(RunPhases, APlanIsOfTheRunAsItIsDescribedAndLoadsAtItsBeginning) {
  RunContext context(config_.machine, logger_);
  DescribedRun run = described(context);
  RankGroup group(context);
  const int64_t whole = plan_run(run, group).memory.total();
  halve_batch(run);
  PlannedRun planned = plan_run(run, group);
  EXPECT_LT(planned.memory.total(), whole);
  EXPECT_TRUE(planned.engine->options().accumulates);
  const LoadedRun loaded = load_planned(planned, {});
  EXPECT_EQ(loaded.state.step, 0);
  EXPECT_FALSE(loaded.resumed);
  EXPECT_EQ(loaded.state.total_steps, 2);
  EXPECT_TRUE(run.model->store().all().front().state().moment1.values.defined());
  EXPECT_FALSE(std::filesystem::exists(config_.report.output_dir)) << "nothing is written before the run runs";
}

TEST_F(RunPhases, AnEvaluationHasWeightsAlone) {
  RunContext context(config_.machine, logger_);
  RankGroup group(context);
  const auto load = [&](std::optional<int64_t> max_samples) {
    return load_evaluation(describe_evaluation(config_, context, max_samples), group);
  };
  const EvaluationRun whole = load({});
  EXPECT_FALSE(whole.described.model->store().all().front().state().moment1.values.defined());
  const LossResult all = whole.evaluate();
  EXPECT_EQ(all.tokens, 64);
  EXPECT_EQ(whole.evaluate().loss, all.loss);
  EXPECT_EQ(load(3).evaluate().tokens, 24);
}

}  // namespace
}  // namespace hone
