#include "report/reporter.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/text/json.h"
#include "report/folder_testing.h"

namespace hone {
namespace {

using testing::HasSubstr;
using testing::Not;

class ReporterTest : public testing::Test {
 protected:
  ReporterTest()
      : fd_(open((folder_ / "console").c_str(), O_RDWR | O_CREAT | O_APPEND, 0600)),
        console_({.fd = fd_}),
        logger_(console_) {}
  ~ReporterTest() override { close(fd_); }

  ReportOptions options() const { return {.output_dir = folder_ / "out"}; }
  static StepMetrics step(int64_t number, double loss) {
    return {.step = number, .loss = loss, .step_time = 2.0, .step_supervised_tokens = 10};
  }
  std::vector<Json> lines() const {
    std::vector<Json> result;
    for (const auto& line : split_lines(read_text(folder_ / "out/metrics.jsonl"))) result.push_back(Json::parse(line));
    return result;
  }
  std::string shown() const { return read_text(folder_ / "console"); }
  size_t event_files() const {
    if (!std::filesystem::exists(folder_ / "out/runs")) return 0;
    const std::filesystem::directory_iterator files(folder_ / "out/runs");
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  TestFolder folder_;
  int fd_;
  Console console_;
  Logger logger_;
};

TEST_F(ReporterTest, ARunLeavesItsMetricsStateAndEvents) {
  Reporter reporter(options(), logger_);
  reporter.on_start({.total_steps = 2, .num_train_epochs = 1});
  reporter.on_step(step(1, 2.5));
  reporter.on_step(step(2, 1.5));
  reporter.on_eval({.step = 2, .eval_loss = 1.4, .eval_perplexity = 4.06, .seconds = 1, .is_best = true});
  reporter.set_best({.metric = 1.4, .step = 2, .checkpoint = "out/checkpoint-2"});
  reporter.on_save({.path = "out/checkpoint-2", .step = 2, .seconds = 0.5, .bytes = 1'200'000});
  reporter.on_end({});
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_EQ(lines()[1]["loss"], 1.5);
  EXPECT_EQ(lines()[2]["eval_loss"], 1.4);
  const Json state = Json::parse(read_text(folder_ / "out/trainer_state.json"));
  EXPECT_EQ(state["log_history"].size(), 3u);
  EXPECT_EQ(state["best_metric"], 1.4);
  EXPECT_EQ(state["global_step"], 2);
  EXPECT_EQ(event_files(), 1u);
  EXPECT_THAT(shown(), HasSubstr("  1/2  loss 2.5000"));
  EXPECT_THAT(shown(), HasSubstr("saved out/checkpoint-2 (1.2 MB, 0.5s)"));
  EXPECT_THAT(shown(), HasSubstr("loss 2.5000 → 1.5000   best evaluation 1.4000 at step 2"));
}

TEST_F(ReporterTest, TheSummaryComparesMeansOfFirstAndLastSteps) {
  Reporter reporter(options(), logger_);
  reporter.on_start({.total_steps = 4, .num_train_epochs = 1});
  for (int64_t i = 1; i <= 4; ++i) reporter.on_step(step(i, 5.0 - static_cast<double>(i)));
  reporter.on_end({});
  EXPECT_THAT(shown(), HasSubstr("loss 3.5000 → 1.5000 (means of 2 steps)"));
}

TEST_F(ReporterTest, TheSummaryCountsSkippedStepsAndLeavesTheirLossOut) {
  const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0);
  Reporter reporter(options(), logger_);
  reporter.on_start({.total_steps = 4, .num_train_epochs = 1});
  int64_t number = 0;
  for (const double loss : {2.5, nan, nan, 1.5}) reporter.on_step(step(++number, loss));
  reporter.set_best({.metric = nan, .step = 4, .checkpoint = ""});
  reporter.on_end({.skipped = 2});
  EXPECT_THAT(shown(), HasSubstr("loss 2.5000 → 1.5000   2 of the steps skipped: their numbers were not finite   "
                                 "best evaluation NaN at step 4"));
  EXPECT_THAT(shown(), Not(HasSubstr("nan")));
}

TEST_F(ReporterTest, ResumeContinuesTheFilesAndRepeatsNoStep) {
  {
    Reporter first(options(), logger_);
    first.on_start({.total_steps = 4});
    for (int64_t i = 1; i <= 3; ++i) first.on_step(step(i, 5.0 - static_cast<double>(i)));
  }
  Reporter second(options(), logger_);
  second.on_start({.total_steps = 4, .resumed_step = 2, .resumed = true});
  second.on_step(step(3, 2.0));
  second.on_step(step(4, 1.0));
  second.on_end({});
  std::vector<int64_t> steps;
  for (const auto& line : lines()) steps.push_back(line["step"].get<int64_t>());
  EXPECT_THAT(steps, testing::ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(Json::parse(read_text(folder_ / "out/trainer_state.json"))["log_history"].size(), 4u);
  EXPECT_EQ(event_files(), 2u);
}

TEST_F(ReporterTest, LoggingStepsWritesTheMeanAndTheEndLosesNothing) {
  auto with_steps = options();
  with_steps.logging_steps = 2;
  Reporter reporter(with_steps, logger_);
  reporter.on_start({.total_steps = 10});
  reporter.on_step(step(1, 4.0));
  reporter.on_step(step(2, 2.0));
  reporter.on_step(step(3, 1.0));
  EXPECT_EQ(lines().size(), 1u);
  reporter.on_end({.finished = false, .reason = "SIGTERM"});
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_EQ(lines()[0]["loss"], 3.0);
  EXPECT_EQ(lines()[1]["step"], 3);
  EXPECT_THAT(shown(), HasSubstr("stopped  3 steps in 6.0s: SIGTERM"));
}

TEST_F(ReporterTest, TheTimeLeftCountsEvaluationsAndForgetsTheSlowFirstSteps) {
  Reporter reporter(options(), logger_);
  reporter.on_start({.total_steps = 10});
  for (int64_t i = 1; i <= 4; ++i) {
    StepMetrics m = step(i, 1.0);
    m.step_time = i <= 2 ? 60.0 : 2.0;
    reporter.on_step(m);
  }
  EXPECT_DOUBLE_EQ(lines().back()["eta"].get<double>(), 6 * 2.0);
  reporter.on_eval({.step = 4, .seconds = 5});
  reporter.on_step(step(5, 1.0));
  EXPECT_DOUBLE_EQ(lines().back()["eta"].get<double>(), 5 * (2.0 + 5.0 / 5));
}

TEST_F(ReporterTest, RunLogHasTheFieldsThatANarrowTerminalLeavesOut) {
  Console narrow({.fd = fd_, .fixed_width = 40});
  Logger logger(narrow);
  logger.open_file(folder_ / "out/run.log");
  Reporter reporter(options(), logger);
  reporter.on_start({.total_steps = 2});
  StepMetrics m = step(1, 2.5);
  m.max_alloc = 1e9;
  reporter.on_step(m);
  EXPECT_THAT(shown(), Not(HasSubstr("mem")));
  EXPECT_THAT(read_text(folder_ / "out/run.log"), HasSubstr("mem  1.0 GB"));
}

TEST_F(ReporterTest, NaNReachesEverySink) {
  Reporter reporter(options(), logger_);
  reporter.on_start({.total_steps = 2});
  reporter.on_step(step(1, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_TRUE(lines()[0]["loss"].is_null());
  EXPECT_EQ(lines()[0]["nonfinite"]["loss"], "NaN");
  EXPECT_THAT(shown(), HasSubstr("NaN"));
}

TEST_F(ReporterTest, TensorBoardThatFailsWarnsOnceAndTheRunGoesOn) {
  auto blocked = options();
  blocked.logging_dir = folder_ / "file/runs";
  write_text(folder_ / "file", "not a folder");
  Reporter reporter(blocked, logger_);
  reporter.on_start({.total_steps = 2});
  reporter.on_step(step(1, 2.5));
  reporter.on_step(step(2, 1.5));
  EXPECT_EQ(lines().size(), 2u);
  EXPECT_THAT(shown(), HasSubstr("warning: TensorBoard is switched off: cannot write"));
}

TEST_F(ReporterTest, MetricsThatFailEndTheRunWithTheUsersError) {
  Reporter reporter(options(), logger_);
  reporter.on_start({.total_steps = 2});
  const FileSizeLimit limit(100);
  EXPECT_THROW(reporter.on_step(step(1, 2.5)), UserError);
}

TEST_F(ReporterTest, OnlyTheNamedSinksAreWritten) {
  auto none = options();
  none.report_to = {};
  {
    Reporter reporter(none, logger_);
    reporter.on_start({.total_steps = 1});
    reporter.on_step(step(1, 2.5));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/metrics.jsonl"));
  EXPECT_EQ(event_files(), 0u);
}

TEST_F(ReporterTest, ARunNameIsOneFolderOfTheEventFiles) {
  auto named = options();
  named.run_name = "../my/run";
  Reporter reporter(named, logger_);
  reporter.on_start({.total_steps = 1});
  EXPECT_TRUE(std::filesystem::is_directory(folder_ / "out/runs/.._my_run"));
}

}  // namespace
}  // namespace hone
