// Tests of hone launch: CPU ranks that train together, lost ranks, and signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <thread>

#include "program.h"
#include "rank_runs.h"
#include "shell.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Launch : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = make_model(folder_);
    data_ = folder_.write("data.jsonl", progressions(48));
  }

  /// Arguments of a run of the tiny model by `ranks` ranks that would take an hour.
  std::vector<std::string> endless(int ranks, const std::string& output, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"launch", "-n", std::to_string(ranks), "--device", "cpu"};
    std::vector<std::string> own = {"global_batch_size=12", "max_steps=1000000", "save_steps=1000000",
                                    "eval_strategy=no"};
    own.insert(own.end(), more.begin(), more.end());
    for (const std::string& argument : train_arguments(model_, data_, folder_ / output, own)) {
      if (!argument.starts_with("gradient_accumulation_steps="))
        arguments.push_back(argument);  // follows from the number of ranks
    }
    return arguments;
  }

  /// Waits until the run has taken some steps; returns the process ids of its ranks from its log.
  std::vector<pid_t> ranks_of(const std::string& output) const {
    const auto metrics = folder_ / output / "metrics.jsonl";
    for (int i = 0; i < 1200 && (!std::filesystem::exists(metrics) || read_json_lines(metrics).size() < 5); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    const std::string log = read_file(folder_ / output / "run.log");
    const std::regex pattern(R"(rank \d+ \([^,]*, pid (\d+)\))");
    std::vector<pid_t> pids;
    for (std::sregex_iterator i(log.begin(), log.end(), pattern), end; i != end; ++i)
      pids.push_back(std::stoi((*i)[1]));
    return pids;
  }

  std::vector<std::string> checkpoints(const std::string& output) const {
    std::vector<std::string> names;
    for (const std::string& name : names_in(folder_ / output)) {
      if (name.starts_with("checkpoint-")) names.push_back(name);
    }
    return names;
  }

  Folder folder_;
  std::string model_, data_;
};

TEST_F(Launch, TwoRanksTrainAndOneGoesOn) {
  const Outcome two = run_hone(endless(2, "run", {"max_steps=4"}));
  EXPECT_EQ(two.code, 0) << two.err << two.out;
  EXPECT_EQ(two.out.find("\x1b"), std::string::npos) << "colours in a file";
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / "logs" / "rank_1.log"));
  EXPECT_THAT(checkpoints("run"), Contains("checkpoint-4"));
  auto more = endless(2, "run", {"max_steps=6", "resume=auto"});
  more.erase(more.begin(), more.begin() + 5);  // run by one process
  const Outcome one = run_hone(more);
  EXPECT_EQ(one.code, 0) << one.err << one.out;
  EXPECT_THAT(checkpoints("run"), Contains("checkpoint-6"));
}

TEST_F(Launch, AMistakeInTheConfigurationIsSaidOnce) {
  const Outcome outcome =
      run_hone(endless(2, "run", {"global_batch_size=2", "per_device_train_batch_size=2", "--dry-run"}));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  const size_t said = outcome.err.find("set per_device_train_batch_size: 1, with which the run trains the same");
  ASSERT_NE(said, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("set per_device_train_batch_size", said + 1), std::string::npos) << outcome.err;
}

TEST_F(Launch, AKilledRankIsNamedAndTheLastStepIsSaved) {
  Process run(endless(3, "run"));
  const std::vector<pid_t> ranks = ranks_of("run");
  ASSERT_EQ(ranks.size(), 3u);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(ranks[1], SIGKILL), 0);
  const Outcome outcome = run.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("pid " + std::to_string(ranks[1]) + ") is lost: its connection has ended; last seen"));
  ASSERT_EQ(checkpoints("run").size(), 1u) << outcome.err;
  auto more = endless(2, "run", {"resume=auto"});
  const int64_t step = std::stoll(checkpoints("run")[0].substr(std::string("checkpoint-").size()));
  more.push_back("max_steps=" + std::to_string(step + 2));
  const Outcome resumed = run_hone(more);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

TEST_F(Launch, TheFirstRankMayBeTheOneThatIsLost) {
  Process run(endless(2, "run"));
  const std::vector<pid_t> ranks = ranks_of("run");
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks[0], SIGKILL), 0);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rank 1: error: rank 0 ("));
  EXPECT_EQ(checkpoints("run").size(), 1u) << outcome.err;
}

TEST_F(Launch, ShardedStateThatIsLostIsNotSaved) {
  Process run(endless(2, "run", {"zero_stage=1"}));
  const std::vector<pid_t> ranks = ranks_of("run");
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks[1], SIGKILL), 0);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_EQ(checkpoints("run").size(), 0u);
  EXPECT_THAT(read_file(folder_ / "run" / "run.log"), HasSubstr("had a part of the training state"));
}

TEST_F(Launch, AStoppedRankIsNamedAndEnded) {
  Process run(endless(2, "run"));
  const std::vector<pid_t> ranks = ranks_of("run");
  ASSERT_EQ(ranks.size(), 2u);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(ranks[1], SIGSTOP), 0);
  const Outcome outcome = run.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("is lost: nothing was heard of it for 1"));
  EXPECT_EQ(checkpoints("run").size(), 1u) << outcome.err;
}

TEST_F(Launch, OthersWaitForARankAsLongAsTheyAreTold) {
  Process run(endless(2, "run", {"ddp_timeout=3"}));
  const std::vector<pid_t> ranks = ranks_of("run");
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks[1], SIGSTOP), 0);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("(ddp_timeout) for rank 1 ("));
}

TEST_F(Launch, ASignalToAnyRankSavesOnceAndStopsAll) {
  Process run(endless(2, "run"));
  const std::vector<pid_t> ranks = ranks_of("run");
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks[1], SIGTERM), 0);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_EQ(checkpoints("run").size(), 1u);
}

TEST_F(Launch, ASignalToTheLauncherReachesTheRanks) {
  Process run(endless(2, "run"));
  ASSERT_EQ(ranks_of("run").size(), 2u);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().code, 75);
  EXPECT_EQ(checkpoints("run").size(), 1u);
}

TEST_F(Launch, AMistakeOfTheConfigurationEndsAllAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run_hone(endless(2, "run", {"learning_rat=1"}));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("learning_rat"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

/// Runs of two ranks, one of which has a full disk.
class LaunchOnAFullDisk : public ::testing::Test {
 protected:
  Outcome run(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"launch", "-n", "2", "--device", "cpu", "--"};
    for (const std::string& argument : runs_.arguments("run", more)) arguments.push_back(argument);
    return run_hone(arguments);
  }

  Folder folder_;
  const RankRuns runs_{folder_};
};
TEST_F(LaunchOnAFullDisk, ACheckpointThatDoesNotFitEndsAllAndLeavesTheLastOne) {
  const SmallDisk disk(folder_ / "run", "size=1m");
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const Outcome outcome = run({"max_steps=40", "save_steps=2", "save_total_limit=20", "report_to=none"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  const std::string why = "the file cannot be written: No space left on device", place = "run/checkpoint-";
  // Both ranks write: either may be the first to find the disk full.
  const std::string own = "rank ([01]): error: " + why + "(.|\n)*nothing that was saved before is lost";
  EXPECT_THAT(outcome.err, ContainsRegex(own));
  EXPECT_THAT(outcome.err,
              ContainsRegex("rank [01]: error: (rank [01] \\(.*\\) failed: )?" + why + " ?\\(?.*" + place));
  fs::copy(folder_ / "run", folder_ / "saved", fs::copy_options::recursive);
  const Outcome resumed = run_hone(runs_.arguments("saved", {"resume=auto", "max_steps=41"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("/saved/checkpoint-"));
}

TEST_F(LaunchOnAFullDisk, ALogThatEndsEarlyIsNamedAndTheRunGoesOn) {
  const SmallDisk disk(folder_ / "run" / "logs", "size=4k");
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const Outcome outcome = run({"overwrite_output_dir=true", "max_steps=100"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, ContainsRegex("warning: .*/run/logs/rank_1.log cannot be written: .*No space left"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "checkpoint-100"));
}

TEST_F(LaunchOnAFullDisk, ARankThatCannotBeginItsLogIsNamed) {
  const SmallDisk disk(folder_ / "run" / "logs", "size=4k,nr_inodes=1");
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const Outcome outcome = run({"overwrite_output_dir=true"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, ContainsRegex("rank 0: error: rank 1 \\(.*\\) failed: .*/run/logs/rank_1.log"));
}

TEST(LaunchWithoutMpi, StartsCpuRanksItself) {
  const Folder folder;
  const RankRuns runs(folder);
  const ShellOutcome outcome =
      run_shell("PATH=/nowhere " + hone_program() + " launch -n 2 --device cpu --" + runs.words("run"));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("started by hand"));
  runs.expect_losses_of_one_rank("run");
}

TEST(LaunchErrors, SayHowToStartRanks) {
  EXPECT_THAT(run_hone({"launch", "-n", "2"}).err, HasSubstr("there is nothing to start"));
  EXPECT_THAT(run_hone({"launch", "-n", "2", "merge", "x"}).err, HasSubstr("'merge' does not run on several ranks"));
  EXPECT_THAT(run_hone({"launch", "--hosts", "a,b", "merge", "x"}).err,
              HasSubstr("train, eval, generate, verify, bench do: hone launch -n 2 -- train run.yaml; other verbs run "
                        "alone: hone merge"));
  EXPECT_THAT(run_hone({"launch", "-n", "2", "chat"}).err, HasSubstr("'chat' is a conversation with one process"));
  EXPECT_THAT(run_hone({"launch", "train", "run.yaml"}).err, HasSubstr("the number of ranks is missing"));
  EXPECT_THAT(run_hone({"launch", "--hosts", "a,b", "-n", "0", "train", "x"}).err, HasSubstr("each host needs a rank"));
  EXPECT_THAT(run_hone({"launch", "-n", "0", "train", "run.yaml"}).err, HasSubstr("0 ranks cannot be started"));
  EXPECT_THAT(run_hone({"launch", "-n", "1000", "--device", "cuda", "train", "x"}).err, HasSubstr("as many GPUs"));
  EXPECT_THAT(run_hone({"launch", "-n", "2", "--device", "tpu", "--", "train", "x"}).err,
              HasSubstr("'tpu' is not a device."));
  EXPECT_THAT(run_hone({"launch", "-n", "2", "--device", "cuda:1", "--", "train", "x"}).err,
              HasSubstr("cuda:1 is one GPU, but each rank takes one of its own"));
  EXPECT_EQ(run_hone({"launch", "-n", "2"}).code, 2);
}

}  // namespace
}  // namespace hone
