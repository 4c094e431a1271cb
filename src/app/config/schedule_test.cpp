// Learning rates from a configuration, against those of transformers (tools/make_schedule_fixture.py).
#include <gmock/gmock.h>

#include <fstream>

#include "app/config/config_testing.h"
#include "train/schedule_options.h"

namespace hone {
namespace {

using testing::HasSubstr;

TEST(ScheduleConfig, EveryShapeIsThatOfTransformersAfterAWarmUpThatStartsOneStepLater) {
  std::ifstream file(HONE_SOURCE_DIR "/tests/fixtures/schedules.json");
  const Json fixture = Json::parse(file);
  const double peak = fixture["learning_rate"];
  const int64_t total = fixture["total_steps"];
  ASSERT_GT(fixture["cases"].size(), 10u);
  for (const Json& known : fixture["cases"]) {
    Json config = known["config"];
    config["learning_rate"] = peak;
    const std::string yaml = config.dump();
    const Schedule schedule = schedule_of(resolved(yaml).run.schedule, total);
    const std::vector<double> rates = known["rates"];
    // transformers warms warmup_stable_decay up from its floor.
    const bool other_warmup = schedule.type == ScheduleType::kWarmupStableDecay && schedule.min_lr > 0;
    for (int64_t step = other_warmup ? schedule.warmup_steps : 0; step < total; ++step) {
      // transformers' step 0 of a warm-up does nothing; ours is its step 1.
      const double expected = rates[static_cast<size_t>(step < schedule.warmup_steps ? step + 1 : step)];
      // Both compute in float64 with a handful of roundings, cos among them.
      EXPECT_NEAR(schedule.at(step), expected, 1e-13 * peak + 1e-12 * expected) << yaml << " step " << step;
    }
  }
}

TEST(ScheduleConfig, AShareOfTheRunIsRoundedUpToSteps) {
  const Schedule schedule =
      schedule_of(resolved("lr_scheduler_type: wsd\nwarmup_ratio: 0.05\nlr: 1\ndecay_type: linear").run.schedule, 101);
  EXPECT_EQ(schedule.warmup_steps, 6);
  EXPECT_EQ(schedule.decay_steps, 11);
  EXPECT_EQ(schedule.stable_steps, 84);
  EXPECT_DOUBLE_EQ(schedule.at(89), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(90), 1.0);  // the first step of the decay still has the peak, as in transformers
  EXPECT_NEAR(schedule.at(100), 1.0 / 11, 1e-12);
}

TEST(ScheduleConfig, TheCooldownThatIsWrittenAsTheType) {
  const RunConfig::Schedule schedule = resolved("lr_scheduler_type: 1-sqrt").run.schedule;
  EXPECT_EQ(schedule.lr_scheduler_type, "warmup_stable_decay");
  EXPECT_EQ(schedule.decay_type, "1-sqrt");
  EXPECT_THAT(refusal("lr_scheduler_type: 1-sqrt\ndecay_type: cosine"),
              HasSubstr("lr_scheduler_type is 1-sqrt, but decay_type is cosine | run.yaml:2"));
}

TEST(ScheduleConfig, ArgumentsAsTransformersWritesThem) {
  const RunConfig::Schedule schedule =
      resolved("lr_scheduler_type: cosine_with_restarts\nlr_scheduler_kwargs: {num_cycles: 4}").run.schedule;
  EXPECT_EQ(schedule_of(schedule, 10).num_cycles, 4);
  EXPECT_THAT(refusal("lr_scheduler_kwargs: {num_cyles: 4}"), HasSubstr("num_cycles"));
  EXPECT_TRUE(has_note(resolved("lr_scheduler_type: linear\nnum_cycles: 4"),
                       "num_cycles has no effect: lr_scheduler_type is linear (run.yaml:2)"));
}

TEST(ScheduleConfig, WhatNoScheduleCanDoIsRefused) {
  EXPECT_THAT(refusal("lr_scheduler_type: cosine_with_restarts\nnum_cycles: 1.5"),
              HasSubstr("falls a whole number of times, not 1.5 | run.yaml:2"));
  EXPECT_THAT(refusal("lr_scheduler_type: wsd\nnum_decay_steps: 3.5"),
              HasSubstr("num_decay_steps 3.5 is neither a share below 1 nor a whole number | run.yaml:2"));
  EXPECT_THAT(refusal("lr_scheduler_type: wsd\ndecay_type: exponential"), HasSubstr("one of linear, cosine, 1-sqrt"));
  EXPECT_THAT(refusal("power: 0"), HasSubstr("power is '0'"));
  const RunConfig::Schedule longer =
      resolved("lr_scheduler_type: wsd\nwarmup_steps: 5\nnum_decay_steps: 8").run.schedule;
  try {
    schedule_of(longer, 10);
    FAIL() << "a decay longer than the run";
  } catch (const UserError& error) {
    EXPECT_THAT(error.message(), HasSubstr("warm-up (5), stable part (0) and decay (8) are longer than the run of 10"));
  }
}

}  // namespace
}  // namespace hone
