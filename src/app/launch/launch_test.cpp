#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "app/launch/launch_scripts.h"
#include "app/launch/rank_processes.h"
#include "core/base/error.h"
#include "core/text/shell_words.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Hosts are shells of this machine, and the program is a script, in a folder whose name needs quotes.
class SshScript : public ::testing::Test {
 protected:
  SshScript() {
    std::string name = (fs::temp_directory_path() / "hone launch's XXXXXX").string();
    folder_ = mkdtemp(name.data());
    write("ssh", "#!/bin/bash\nhost=$1 exec bash -c \"$2\"\n");
    plan_.program = folder_ / "hone";
    plan_.command = {"train", "it's.yaml"};
    plan_.directory = folder_;
    plan_.logs = "logs";
    hosts_.hosts = {"me@a", "b"};
    hosts_.ssh = "./ssh";
  }
  ~SshScript() override { fs::remove_all(folder_); }

  void write(const char* name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }
  void write_program(const std::string& body) { write("hone", "#!/bin/bash\n" + body); }

  /// Runs the script in the folder; returns its exit code, or -1 if a signal ended it.
  int run(const std::string& prefix = "") {
    write("launch.sh", ssh_script(plan_, hosts_));
    const std::string command = "cd " + shell_word(folder_.string()) + " && " + prefix + " bash launch.sh > out 2> err";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string file(const std::string& name) { return read(folder_ / name); }

  fs::path folder_;
  LaunchPlan plan_;
  SshHosts hosts_;
};

constexpr const char* kPrintEnvironment =
    "echo \"$host: $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT [$EXTRA] $(pwd) $*\"\n";

TEST_F(SshScript, StartsEachRankWithItsVariablesAndKeepsItsLog) {
  write_program(kPrintEnvironment);
  plan_.ranks_per_host = 2;
  plan_.environment = {"EXTRA=two words, and 'quotes'"};
  ASSERT_EQ(run(), 0) << file("err");
  const std::string rest = "4 a 29500 [two words, and 'quotes'] " + folder_.string() + " train it's.yaml\n";
  EXPECT_EQ(file("logs/rank_0.log"), "me@a: 0 0 " + rest);
  EXPECT_EQ(file("logs/rank_1.log"), "me@a: 1 1 " + rest);
  EXPECT_EQ(file("logs/rank_2.log"), "b: 2 0 " + rest);
  EXPECT_EQ(file("logs/rank_3.log"), "b: 3 1 " + rest);
}

TEST_F(SshScript, RanksGetTheSecretOfTheRunAndNobodyElseSeesIt) {
  write("ssh", "#!/bin/bash\necho \"$@\" >> words\nenv >> words\nhost=$1 exec bash -c \"$2\"\n");
  write_program("echo \"$HONE_RUN_SECRET\"\n");
  ASSERT_EQ(run(), 0) << file("err");
  const std::string first = file("logs/rank_0.log");
  EXPECT_EQ(first.size(), 65u) << first;
  EXPECT_EQ(file("logs/rank_1.log"), first);
  EXPECT_EQ(file("words").find(first.substr(0, 64)), std::string::npos) << "on a command line, or in ssh's environment";
  ASSERT_EQ(run(), 0) << file("err");
  EXPECT_NE(file("logs/rank_0.log"), first) << "not a new one";
  ASSERT_EQ(run("HONE_RUN_SECRET=0123456789abcdef"), 0);
  EXPECT_EQ(file("logs/rank_1.log"), "0123456789abcdef\n");
  write("secret", "fedcba9876543210\n");
  ASSERT_EQ(run("HONE_RUN_SECRET_FILE=secret"), 0);
  EXPECT_EQ(file("logs/rank_1.log"), "fedcba9876543210\n");
}

TEST_F(SshScript, IndependentModelsHaveShardsAndFoldersOfTheirOwn) {
  write_program("echo \"$host: [$RANK] $*\"\n");
  fs::create_directories(folder_ / "my data");
  write("my data/training_data_node_0.csv", "");
  write("my data/training_data_node_1.jsonl", "");
  plan_.independent = {.count = 2, .shards = "my data", .output_dir = "my models"};
  ASSERT_EQ(run(), 0) << file("err");
  const std::string rest = " it's.yaml output_dir=my models/node_";
  EXPECT_EQ(file("logs/node_0.log"), "me@a: [] train" + rest + "0 datasets=my data/training_data_node_0.csv\n");
  EXPECT_EQ(file("logs/node_1.log"), "b: [] train" + rest + "1 datasets=my data/training_data_node_1.jsonl\n");
  EXPECT_THAT(file("launch.sh"), HasSubstr("# These are 2 independent models"));
  plan_.ranks_per_host = 4;
  ASSERT_EQ(run(), 0) << file("err");
  EXPECT_THAT(file("logs/node_1.log"), HasSubstr("launch -n 4 -- train" + rest + "1"));
}

TEST_F(SshScript, TheFirstFailureIsTheExitCodeAndIsShown) {
  write_program("if [ $RANK = 1 ]; then echo 'the disk is full'; exit 7; fi\nsleep 0.5\n");
  EXPECT_EQ(run(), 7);
  EXPECT_THAT(file("err"), HasSubstr("b: exit code 7"));
  EXPECT_THAT(file("err"), HasSubstr("the disk is full"));
}

TEST_F(SshScript, WhateverEndsTheScriptEndsTheRanks) {
  write_program("trap 'echo saved > saved_$RANK; exit 75' TERM\nwhile :; do sleep 0.05; done\n");
  for (const char* signal : {"TERM", "KILL"}) {
    run(std::string("timeout --foreground --signal=") + signal + " 1.5");
    for (int i = 0; i < 100 && !(fs::exists(folder_ / "saved_0") && fs::exists(folder_ / "saved_1")); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    for (const char* name : {"saved_0", "saved_1"}) {
      EXPECT_TRUE(fs::remove(folder_ / name)) << name << " after " << signal;
    }
  }
}

TEST_F(SshScript, RefusesWhatIsNoHost) {
  for (const std::vector<std::string>& hosts :
       std::vector<std::vector<std::string>>{{}, {""}, {"a", "b", "a"}, {"-oProxyCommand=x"}, {"a;b"}, {"$(x)"}}) {
    hosts_.hosts = hosts;
    EXPECT_THROW(ssh_script(plan_, hosts_), UserError);
  }
}

TEST(LaunchPlan, RefusesWhatCannotBeStarted) {
  LaunchPlan plan;
  plan.program = "hone";
  plan.command = {"train", "run.yaml"};
  EXPECT_NO_THROW(check_launch_plan(plan));
  const auto expect = [&](const auto& change, const char* text) {
    LaunchPlan wrong = plan;
    change(wrong);
    try {
      check_launch_plan(wrong);
      FAIL() << text;
    } catch (const UserError& error) {
      EXPECT_THAT(error.message(), HasSubstr(text));
    }
  };
  expect([](LaunchPlan& p) { p.command.clear(); }, "nothing to start");
  expect([](LaunchPlan& p) { p.command = {"trian"}; }, "'train'");
  expect([](LaunchPlan& p) { p.command = {"merge", "run.yaml"}; }, "'merge' does not run on several ranks");
  expect(
      [](LaunchPlan& p) {
        p.command = {"bench", "step"};
        p.independent.count = 2;
      },
      "'bench' makes no models");
  expect([](LaunchPlan& p) { p.ranks_per_host = 0; }, "each host needs a rank");
  expect([](LaunchPlan& p) { p.port = 80; }, "80 cannot be the port");
  expect([](LaunchPlan& p) { p.environment = {"=x"}; }, "NAME=VALUE");
  expect([](LaunchPlan& p) { p.environment = {"A B=x"}; }, "NAME=VALUE");
  expect([](LaunchPlan& p) { p.environment = {"HONE_RUN_SECRET=0123456789abcdef"}; }, "would be visible in a script");
}

TEST(ShellWord, IsOneWordOfAShell) {
  EXPECT_EQ(shell_word("run.yaml"), "run.yaml");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_words({"a", "b c"}), "a 'b c'");
}

using ::testing::Not;

LaunchPlan plan() {
  LaunchPlan plan;
  plan.program = "/opt/hone";
  plan.command = {"train", "my run.yaml"};
  plan.directory = "/data/runs";
  plan.ranks_per_host = 4;
  return plan;
}

TEST(SlurmScript, RunsOneModelOnAllNodes) {
  SlurmOptions options;
  options.nodes = 2;
  options.memory = "500G";
  options.time = "48:00:00";
  options.partition = "gpu";
  options.cpus_per_rank = 16;
  const std::string script = slurm_script(plan(), options);
  for (const char* line : {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=4\n", "#SBATCH --gpus-per-node=4\n",
                           "#SBATCH --mem=500G\n", "#SBATCH --time=48:00:00\n", "#SBATCH --partition=gpu\n",
                           "#SBATCH --output=logs/slurm_%j.log\n", "#SBATCH --open-mode=append\n", "cd /data/runs\n",
                           "srun --kill-on-bad-exit=1 --open-mode=append --cpus-per-task=16 --output=logs/rank_%t.log "
                           "/opt/hone train 'my run.yaml'\n"}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  EXPECT_THAT(script, Not(HasSubstr("--array")));
  EXPECT_THAT(script, Not(HasSubstr("--account"))) << "not stated";
  EXPECT_EQ(script.find("#!/bin/bash\n#SBATCH"), 0u) << "sbatch reads its lines before the first command";
}

TEST(SlurmScript, AsksForAnArrayOfIndependentModels) {
  LaunchPlan models = plan();
  models.independent = {.count = 4, .shards = "data", .output_dir = "outputs"};
  SlurmOptions options;
  options.gpus_per_node = 0;
  const std::string script = slurm_script(models, options);
  for (const char* line : {"#SBATCH --array=0-3\n", "#SBATCH --nodes=1\n", "#SBATCH --output=logs/node_%a.log\n",
                           "MASTER_PORT=$((29500 + node))\n", "shard=$(ls data/training_data_node_\"$node\".*)\n",
                           "datasets=\"$shard\" output_dir=outputs/node_\"$node\"\n", "4 independent models"}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  EXPECT_THAT(script, Not(HasSubstr("--gpus"))) << "none are asked for";
  EXPECT_THAT(slurm_explanation(models, options),
              HasSubstr("hone prepare datasets=FILE --split-nodes 4 --output data"));
}

TEST(SlurmScript, MakesTheSecretOfTheRunWhenTheJobRuns) {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "hone-slurm-XXXXXX").string();
  const fs::path folder = ::mkdtemp(name.data());
  LaunchPlan here = plan();
  here.directory = folder;
  std::ofstream(folder / "job") << slurm_script(here, {});
  std::ofstream(folder / "srun") << "#!/bin/sh\necho \"$HONE_RUN_SECRET\" >> secrets\necho \"$@\" >> words\n";
  fs::permissions(folder / "srun", fs::perms::owner_all);
  const std::string run = "cd '" + folder.string() + "' && PATH=.:$PATH ";
  for (const std::string stated : {"", "", "HONE_RUN_SECRET=0123456789abcdef "}) {
    EXPECT_EQ(std::system((run + stated + "bash job").c_str()), 0);
  }
  std::ifstream secrets(folder / "secrets"), words(folder / "words");
  const std::string said((std::istreambuf_iterator<char>(words)), {});
  std::string first, second, third;
  secrets >> first >> second >> third;
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(second.size(), 64u);
  EXPECT_NE(first, second);
  EXPECT_EQ(third, "0123456789abcdef");
  EXPECT_THAT(said, Not(HasSubstr(first)));
  fs::remove_all(folder);
}

TEST(SlurmScript, RefusesValuesThatWouldNotBeOne) {
  SlurmOptions options;
  options.time = "1:00 #SBATCH";
  EXPECT_THROW(slurm_script(plan(), options), UserError);
  options.time = "1:00";
  options.nodes = 0;
  EXPECT_THROW(slurm_script(plan(), options), UserError);
}

/// The exit code of a shell that start_process has started; 128 + signal if one ended it.
int script_status(const std::string& script) {
  int status = 0;
  ::waitpid(start_process({"/bin/sh", "-c", script}, {}), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(RankProcesses, SignalsAreCaughtHereAndEndWhatIsStarted) {
  CaughtSignals signals;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    ::raise(signal);
    EXPECT_EQ(signals.take(), signal);
    EXPECT_EQ(signals.take(), 0);
    EXPECT_EQ(script_status("kill -" + std::to_string(signal) + " $$; exit 7"), 128 + signal);
  }
}

TEST(RankProcesses, SignalsThatWereIgnoredStayIgnored) {
  ::signal(SIGHUP, SIG_IGN);
  {
    CaughtSignals signals;
    ::raise(SIGHUP);
    EXPECT_EQ(signals.take(), 0);
    EXPECT_EQ(script_status("kill -HUP $$; exit 7"), 7);
    EXPECT_EQ(script_status("kill -TERM $$; exit 7"), 128 + SIGTERM);
  }
  ::raise(SIGHUP);  // ends the test unless it is still ignored
  ::signal(SIGHUP, SIG_DFL);
}

}  // namespace
}  // namespace hone
