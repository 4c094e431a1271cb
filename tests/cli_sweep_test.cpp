// Tests of hone sweep with a tiny model.
#include <gmock/gmock.h>
#include <signal.h>

#include <thread>

#include "device_main.h"
#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class Sweeps : public testing::Test {
 protected:
  /// Writes a sweep with these sections, on the tiny model.
  std::string sweep(const std::string& sections, const std::string& keys = "max_steps: 4") const {
    return folder_.write("sweep.yaml",
                         "keys: {model_name_or_path: " + model_ + ", datasets: " + data_ +
                             ", max_length: 32, per_device_train_batch_size: 2, threads: 1, val_split: 4, "
                             "eval_steps: 2, lr_scheduler_type: constant, report_to: jsonl, device: " +
                             test_run().device + ", " + keys + "}\n" + sections);
  }
  std::vector<std::string> words(const std::string& file, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"sweep", file, "--output", output()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string output() const { return (folder_ / "out").string(); }
  Json record() const { return Json::parse(read_file(folder_ / "out/sweep.json")); }
  std::vector<std::string> statuses() const {
    const Json sweep = record();
    std::vector<std::string> all;
    for (const Json& run : sweep["runs"]) all.push_back(run["status"]);
    return all;
  }

  Folder folder_;
  std::string model_ = make_model(folder_), data_ = folder_.write("data.jsonl", progressions(40));
};

using Statuses = std::vector<std::string>;

TEST_F(Sweeps, TheBestOfAGridIsNamedAndAFinishedRunStays) {
  const std::string file = sweep("grid: {learning_rate: [1e-5, 1e-2]}\n");
  const Outcome listed = run_hone(words(file, {"--dry-run"}));
  EXPECT_EQ(listed.code, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("learning_rate=1e-2"));
  EXPECT_FALSE(fs::exists(output()));
  const Outcome first = run_hone(words(file));
  ASSERT_EQ(first.code, 0) << first.err << first.out;
  EXPECT_THAT(first.out, HasSubstr("best: learning_rate-1e-2"));
  EXPECT_EQ(statuses(), (Statuses{"finished", "finished"}));
  const Json before = record();
  EXPECT_EQ(before["best"], "learning_rate-1e-2");
  const Json evaluation = read_json_lines(folder_ / "out/learning_rate-1e-2/metrics.jsonl").back();
  EXPECT_EQ(before["runs"][1]["summary"]["eval_loss"], evaluation["eval_loss"]);
  EXPECT_TRUE(fs::exists(folder_ / "out/compare.html"));
  EXPECT_TRUE(fs::exists(folder_ / "out/logs/learning_rate-1e-2.log"));
  // One more value: the others stay.
  const Outcome more = run_hone(words(sweep("grid: {learning_rate: [1e-5, 1e-3, 1e-2]}\n")));
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.err, HasSubstr("learning_rate-1e-5: finished before"));
  EXPECT_THAT(more.err, HasSubstr("learning_rate-1e-3: runs"));
  EXPECT_EQ(statuses(), (Statuses{"finished", "finished", "finished"}));
}

TEST_F(Sweeps, ChangedSettingsAreRefused) {
  ASSERT_EQ(run_hone(words(sweep("grid: {seed: [1, 2]}\n"))).code, 0);
  const std::string before = read_file(folder_ / "out/sweep.json");
  const Outcome changed = run_hone(words(sweep("grid: {seed: [1, 2]}\n", "max_steps: 5")));
  EXPECT_EQ(changed.code, 2);
  EXPECT_THAT(changed.err, HasSubstr("max_steps (4 before, 5 now)"));
  EXPECT_EQ(read_file(folder_ / "out/sweep.json"), before);
}

TEST_F(Sweeps, ARunThatFailsDoesNotKeepTheOthers) {
  const std::string file = sweep("runs:\n  - {name: absent, datasets: " + (folder_ / "absent.jsonl").string() +
                                 "}\n  - {name: refused, learning_rate: fast}\n  - {name: good, seed: 1}\n");
  const Outcome outcome = run_hone(words(file));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_EQ(statuses(), (Statuses{"failed", "failed", "finished"}));
  EXPECT_THAT(record()["runs"][0]["why"].get<std::string>(), HasSubstr("absent.jsonl"));
  EXPECT_THAT(record()["runs"][1]["why"].get<std::string>(), HasSubstr("learning_rate"));
  EXPECT_THAT(outcome.out, HasSubstr("best: good"));
  // What failed is tried again, and nothing else.
  folder_.write("absent.jsonl", progressions(40));
  const Outcome again = run_hone(words(file));
  EXPECT_EQ(again.code, 1);
  EXPECT_EQ(statuses(), (Statuses{"finished", "failed", "finished"}));
  EXPECT_THAT(again.err, HasSubstr("good: finished before"));
}

TEST_F(Sweeps, AMistakeOfAllRunsIsTheErrorOfTheSweep) {
  const Outcome outcome = run_hone(words(sweep("grid: {seed: [1, 2]}\n", "max_steps: many")));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("max_steps"));
  EXPECT_FALSE(fs::exists(output()));
}

TEST_F(Sweeps, ASignalSavesTheRunAndTheSameCommandGoesOn) {
  const std::string file = sweep("runs: [{name: long, seed: 1}, {name: next, seed: 2}]\n", "max_steps: 3000");
  Process process(words(file));
  const fs::path metrics = folder_ / "out/long/metrics.jsonl";
  for (int i = 0; i < 600 && (!fs::exists(metrics) || read_json_lines(metrics).size() < 3); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  process.send(SIGINT);
  const Outcome stopped = process.wait();
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_EQ(statuses(), (Statuses{"interrupted", "waiting"}));
  const int64_t reached = read_json_lines(metrics).back()["step"];
  EXPECT_LT(reached, 3000);
  // With fewer steps than it has made it would end at once; so it goes on to the same number, and a second signal ends
  // it.
  Process again(words(file));
  const auto step = [&] { return read_json_lines(metrics).back()["step"].get<int64_t>(); };
  for (int i = 0; i < 600 && step() < reached + 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  again.send(SIGTERM);
  EXPECT_EQ(again.wait().code, 75);
  EXPECT_GE(step(), reached + 3) << "from where it had stopped";
  EXPECT_EQ(read_json_lines(metrics).front()["step"], 1) << "and with its record";
}

TEST_F(Sweeps, ARunThatIsWorseThanTheMedianEnds) {
  const std::string good = "  - {seed: 1}\n  - {seed: 2}\n  - {seed: 3}\n";
  const std::string file =
      sweep("stop_worse: true\nruns:\n" + good + "  - {name: bad, learning_rate: 1e-9, max_steps: 100000}\n",
            "max_steps: 40, learning_rate: 1e-2, save_strategy: \"no\"");
  const Outcome outcome = run_hone(words(file));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(statuses(), (Statuses{"finished", "finished", "finished", "ended early"}));
  EXPECT_THAT(outcome.err, HasSubstr("above"));
  EXPECT_LT(read_json_lines(folder_ / "out/bad/metrics.jsonl").back()["step"].get<int64_t>(), 100000);
  const Outcome again = run_hone(words(file));
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.err, HasSubstr("bad: ended early before"));
}

TEST_F(Sweeps, TheBetterPartGoesOnFromARung) {
  // Two of the runs would take longer than any test.
  const std::string file = sweep(
      "halving: {at: [4], keep: 0.3}\nruns:\n  - {name: bad, learning_rate: 1e-9, max_steps: 100000}\n"
      "  - {name: worse, learning_rate: 1e-8, max_steps: 100000}\n  - {name: good, max_steps: 400}\n",
      "learning_rate: 1e-2, save_strategy: \"no\"");
  const Outcome outcome = run_hone(words(file));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(statuses(), (Statuses{"ended early", "ended early", "finished"}));
  EXPECT_THAT(outcome.err, HasSubstr("bad: runs to step 4"));
  EXPECT_THAT(outcome.err, HasSubstr("where 1 of 3 go on"));
  EXPECT_THAT(outcome.out, HasSubstr("ended early"));
  EXPECT_THAT(outcome.out, HasSubstr("best: good"));
  EXPECT_LT(read_json_lines(folder_ / "out/bad/metrics.jsonl").back()["step"].get<int64_t>(), 100000);
  const std::vector<Json> good = read_json_lines(folder_ / "out/good/metrics.jsonl");
  EXPECT_EQ(good.front()["step"], 1);
  EXPECT_EQ(good.back()["step"], 400);
  const std::string before = read_file(folder_ / "out/bad/metrics.jsonl");
  const Outcome again = run_hone(words(file));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("bad: ended early before"));
  EXPECT_THAT(again.err, HasSubstr("good: finished before"));
  EXPECT_THAT(again.err, Not(HasSubstr(": runs")));
  EXPECT_EQ(statuses(), (Statuses{"ended early", "ended early", "finished"}));
  EXPECT_EQ(read_file(folder_ / "out/bad/metrics.jsonl"), before);
}

TEST_F(Sweeps, AHalvedSweepThatIsStoppedGoesOn) {
  const std::string file = sweep(
      "halving: {at: [4], keep: 0.5}\nruns:\n  - {name: bad, learning_rate: 1e-9, max_steps: 100000}\n"
      "  - {name: good, max_steps: 100000}\n",
      "learning_rate: 1e-2");
  Process process(words(file));
  const fs::path metrics = folder_ / "out/good/metrics.jsonl";
  const auto step = [&] {
    return fs::exists(metrics) ? read_json_lines(metrics).back()["step"].get<int64_t>() : int64_t{0};
  };
  const auto wait_until = [&](const auto& there) {
    for (int i = 0; i < 1200 && !there(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  // Beyond the rung, whether or not its pause is over.
  wait_until([&] { return fs::exists(output() + "/sweep.json") && statuses()[0] == "ended early"; });
  process.send(SIGINT);
  EXPECT_EQ(process.wait().code, 75);
  EXPECT_EQ(statuses()[0], "ended early");
  const int64_t reached = step();
  Process again(words(file));
  wait_until([&] { return step() >= reached + 3; });
  again.send(SIGINT);
  const Outcome outcome = again.wait();
  EXPECT_EQ(outcome.code, 75);
  EXPECT_THAT(outcome.err, HasSubstr("bad: ended early before"));
  EXPECT_EQ(statuses(), (Statuses{"ended early", "interrupted"}));
  EXPECT_GE(step(), reached + 3);
}

}  // namespace
}  // namespace hone
