#include "report/step_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "report/terminal.h"

namespace hone {
namespace {

using testing::HasSubstr;
using testing::Not;

StepMetrics moe_step(int64_t step) {
  return {.step = step,
          .loss = 1.23456,
          .grad_norm = 0.8731,
          .learning_rate = 9.85e-5,
          .tokens_per_second = 3417,
          .mean_token_accuracy = 0.7812,
          .max_alloc = 12.3e9,
          .eta = 3720,
          .router_load_max_over_mean = 1.321};
}

TEST(StepLine, FitsAHundredColumnsWithEverythingButTheAccuracy) {
  EXPECT_EQ(step_line(moe_step(120), {.total_steps = 2000}),
            "   120/2000  loss 1.2346  grad 0.873  lr 9.85e-5   3.4k tok/s  mem 12.3 GB  expert 1.32x  eta  1h02m");
}

TEST(StepLine, AWiderTerminalShowsTheAccuracyToo) {
  EXPECT_THAT(step_line(moe_step(120), {.total_steps = 2000, .width = 120}), HasSubstr("  acc  78.1%  "));
}

TEST(StepLine, NeverWrapsAndKeepsTheLossLongest) {
  for (int width = 24; width < 140; ++width) {
    const std::string line = step_line(moe_step(120), {.total_steps = 2000, .width = width, .color = true});
    EXPECT_LE(display_width(line), width);
    EXPECT_THAT(strip_color(line), HasSubstr("loss 1.2346"));
  }
}

TEST(StepLine, ColumnsStayFromStepToStep) {
  StepMetrics early = moe_step(9), late = moe_step(1999);
  early.loss = 11.5;
  early.grad_norm = 12.34;
  early.tokens_per_second = 812;
  early.max_alloc = 912e6;
  early.eta = 5.5;
  const std::string a = step_line(early, {.total_steps = 2000}), b = step_line(late, {.total_steps = 2000});
  EXPECT_EQ(a.size(), b.size());
  EXPECT_EQ(a.find("lr"), b.find("lr"));
  EXPECT_EQ(a.find("eta"), b.find("eta"));
}

TEST(StepLine, NaNIsShownInRed) {
  StepMetrics m = moe_step(1);
  m.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(step_line(m, {.total_steps = 10}), HasSubstr("loss    NaN"));
  EXPECT_THAT(step_line(m, {.total_steps = 10, .color = true}), HasSubstr("\x1b[31mNaN"));
}

TEST(StepLine, ADenseModelHasNoRouterField) {
  StepMetrics m = moe_step(1);
  m.router_load_max_over_mean.reset();
  EXPECT_THAT(step_line(m, {.total_steps = 10}), Not(HasSubstr("expert")));
}

TEST(EvalLine, ShowsWhatAPersonComparesAndTheBest) {
  const EvalMetrics m{.step = 120,
                      .eval_loss = 0.9123,
                      .eval_perplexity = 2.49,
                      .eval_mean_token_accuracy = 0.812,
                      .seconds = 3.2,
                      .is_best = true};
  EXPECT_EQ(eval_line(m, {.total_steps = 2000}),
            "   120/2000  eval loss 0.9123  perplexity 2.49  accuracy 81.2%  in 3.2s  best so far");
}

}  // namespace
}  // namespace hone
