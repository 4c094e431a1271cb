// Trainings that the launchers of the field start, each skipped where it is not installed: torchrun, and a SLURM
// cluster of two nodes that runs here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "program.h"
#include "python_tools.h"
#include "rank_runs.h"
#include "shell.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

/// Ports that other tests which run beside this one do not use.
int port_of_this_test(int number) { return 41000 + static_cast<int>(::getpid()) % 1000 * 8 + number; }

bool soon(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

std::string own_name() {
  const std::string name = run_shell("hostname -s").out;
  return name.substr(0, name.find('\n'));
}

class Torchrun : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    const std::string beside = fs::path(python_with("torch", why)).parent_path() / "torchrun";
    torchrun_ = run_shell("command -v torchrun").code == 0 ? "torchrun" : beside;
    if (run_shell(torchrun_ + " --help").code != 0) {
      GTEST_SKIP() << "no torchrun on the PATH or beside HONE_PYTHON: install torch";
    }
  }

  Folder folder_;
  const RankRuns runs_{folder_};
  std::string torchrun_;
};

TEST_F(Torchrun, StartsRanksOfThisMachine) {
  for (const std::string options : {"", "--standalone "}) {
    const ShellOutcome outcome =
        run_shell("timeout 60 " + torchrun_ + " " + options + "--no-python --nproc-per-node 2 " + hone_program() +
                  runs_.words("run" + options));
    EXPECT_EQ(outcome.code, 0) << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr("started by torchrun"));
    runs_.expect_losses_of_one_rank("run" + options);
  }
}

TEST_F(Torchrun, ItsOwnStoreKeepsItsPort) {
  // Two agents, as on two hosts: the first one's store listens at MASTER_PORT.
  const std::string port = std::to_string(port_of_this_test(0)), own = std::to_string(port_of_this_test(1));
  const auto agent = [&](int node) {
    return "timeout 60 " + torchrun_ + " --nnodes 2 --node-rank " + std::to_string(node) +
           " --master-addr 127.0.0.1 --master-port " + port + " --no-python --nproc-per-node 1 " + hone_program() +
           runs_.words("run");
  };
  const ShellOutcome outcome = run_shell("(" + agent(1) + ") & " + agent(0) + "; code=$?; wait; exit $code");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("started by torchrun; rank 0 at 127.0.0.1:" + own));
  runs_.expect_losses_of_one_rank("run");
}

/// A controller and a node, both on this machine, with a key and ports of their own.
class SlurmCluster {
 public:
  SlurmCluster() : socket_(folder_ / "munge.socket") {
    for (const std::string program : {"munged", "slurmctld", "slurmd", "srun", "sbatch"}) {
      if (run("command -v " + program).code == 0) continue;
      problem_ = "no " + program + ": install slurmctld, slurmd, slurm-client and munge";
      return;
    }
    write_configuration();
    const std::string here = (folder_ / "").string();
    start("munged --foreground --force --key-file=" + here + "key --socket=" + socket_ + " --pid-file=" + here +
          "munge.pid --log-file=" + here + "munge.log --seed-file=" + here + "seed");
    if (!soon([&] { return fs::exists(socket_); })) {
      note_failure("munged");
      return;
    }
    start("slurmctld -D");
    start("slurmd -D");
    if (!soon([&] { return is_idle(); })) note_failure("slurmd");
  }
  ~SlurmCluster() {
    for (auto pid = daemons_.rbegin(); pid != daemons_.rend(); ++pid) ::kill(*pid, SIGTERM);
    for (const pid_t pid : daemons_) {
      soon([&] { return ::kill(pid, 0) != 0; });
    }
  }

  /// Why there is none; "" where it runs.
  const std::string& problem() const { return problem_; }
  bool is_idle() const { return run("timeout 5 sinfo -h -t idle -o %D").out == "1\n"; }
  ShellOutcome run(const std::string& command) const {
    return run_shell(path() + "export SLURM_CONF='" + (folder_ / "slurm.conf").string() + "'; " + command);
  }

 private:
  static std::string path() { return "PATH=$PATH:/usr/sbin:/sbin; "; }
  void write_configuration() {
    const std::string here = (folder_ / "").string(), host = own_name();
    folder_.write("key", std::string(128, 'k'));
    fs::permissions(folder_ / "key", fs::perms::owner_read);
    fs::create_directory(folder_ / "state");
    folder_.write("slurm.conf",
                  "ClusterName=test\nSlurmctldHost=" + host + "(127.0.0.1)\nSlurmUser=" + run_shell("id -un").out +
                      "AuthType=auth/munge\nAuthInfo=socket=" + socket_ +
                      "\nSlurmctldPort=" + std::to_string(port_of_this_test(2)) + "\nStateSaveLocation=" + here +
                      "state\nSlurmdSpoolDir=" + here + "spool.%n\nSlurmctldPidFile=" + here +
                      "ctld.pid\nSlurmdPidFile=" + here + "%n.pid\n" +
                      "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
                      "JobAcctGatherType=jobacct_gather/none\nSlurmdParameters=config_overrides\n"
                      "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nNodeName=" +
                      host + " NodeAddr=127.0.0.1 Port=" + std::to_string(port_of_this_test(3)) +
                      " CPUs=4 RealMemory=1000 State=UNKNOWN\n"
                      "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n");
  }
  void start(const std::string& command) {
    const ShellOutcome started = run(command + " >> '" + (folder_ / "log").string() + "' 2>&1 & echo $!");
    daemons_.push_back(std::stoi(started.out));
  }
  void note_failure(const std::string& program) {
    const std::string log = read_file(folder_ / "log");
    problem_ = program + " does not run here: " + log.substr(log.size() - std::min<size_t>(log.size(), 300));
  }

  Folder folder_;
  const std::string socket_;
  std::vector<pid_t> daemons_;
  std::string problem_;
};

class Slurm : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { cluster_ = std::make_unique<SlurmCluster>(); }
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override {
    if (!cluster_->problem().empty()) GTEST_SKIP() << cluster_->problem();
    ASSERT_TRUE(soon([&] { return cluster_->is_idle(); })) << "the test before has left a job";
  }

  /// Writes the script of hone launch --slurm in the folder, and submits it; the job's number.
  std::string submit(const std::string& options, const std::string& words) const {
    const ShellOutcome written = run_in_folder(hone_program() + " launch --slurm " + options + " --" + words);
    EXPECT_EQ(written.code, 0) << written.out;
    const ShellOutcome submitted = run_in_folder("mkdir -p logs && sbatch --parsable hone.slurm");
    EXPECT_EQ(submitted.code, 0) << submitted.out;
    return submitted.out.substr(0, submitted.out.find('\n'));
  }
  ShellOutcome run_in_folder(const std::string& command) const {
    return cluster_->run("cd '" + (folder_ / "").string() + "' && " + command);
  }
  static bool has_ended(const std::string& job) { return cluster_->run("squeue -h -j " + job).out.empty(); }
  static std::string state_of(const std::string& job) { return cluster_->run("scontrol show job " + job).out; }
  std::string log(const std::string& name) const { return read_file(folder_ / "logs" / name); }

  Folder folder_;
  const RankRuns runs_{folder_};
  static std::unique_ptr<SlurmCluster> cluster_;
};
std::unique_ptr<SlurmCluster> Slurm::cluster_;

// The first, since SLURM 22.05 launches no step with PMIx on a node that has had one without.
TEST_F(Slurm, SrunWithPmixStartsRanksThatSpeakMpi) {
  if (const std::string why = why_no_mpi(hone_program()); !why.empty()) GTEST_SKIP() << why;
  if (cluster_->run("srun --mpi=list").out.find("pmix") == std::string::npos) {
    GTEST_SKIP() << "this SLURM has no PMIx: srun --mpi=list";
  }
  const ShellOutcome outcome = cluster_->run("timeout 60 srun --mpi=pmix -n 2 " + hone_program() + runs_.words("run"));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  runs_.expect_losses_of_one_rank("run");
}

TEST_F(Slurm, SrunStartsRanks) {
  const ShellOutcome outcome = cluster_->run("timeout 60 srun -n 2 " + hone_program() + runs_.words("run"));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("rank 0 of 2 (local rank 0), started by SLURM; rank 0 at 127.0.0.1:"));
  runs_.expect_losses_of_one_rank("run");
}

TEST_F(Slurm, TheScriptOfLaunchTrains) {
  const std::string job = submit("-n 2 --device cpu --cpus 1 --time 5", runs_.words("run"));
  ASSERT_TRUE(soon([&] { return has_ended(job); })) << state_of(job);
  EXPECT_EQ(log("slurm_" + job + ".log"), "");
  EXPECT_THAT(log("rank_0.log"), HasSubstr("rank 0 of 2 (local rank 0), started by SLURM; rank 0 at 127.0.0.1:"));
  EXPECT_TRUE(fs::exists(folder_ / "logs" / "rank_1.log"));
  runs_.expect_losses_of_one_rank("run");
}

TEST_F(Slurm, AnArrayTrainsIndependentModels) {
  for (const std::string model : {"0", "1"}) {
    folder_.write("data/training_data_node_" + model + ".jsonl", progressions(24, 5 + std::stoul(model)));
  }
  // Both at once, each of two ranks: those of one model must not meet the other's.
  const std::string job = submit("--independent 2 -n 2 --device cpu --models out", runs_.words("run"));
  ASSERT_TRUE(soon([&] { return has_ended(job); })) << state_of(job);
  for (const int model : {0, 1}) {
    const fs::path output = folder_ / "out" / ("node_" + std::to_string(model));
    const std::string said = log("node_" + std::to_string(model) + ".log");
    ASSERT_TRUE(fs::exists(output / "metrics.jsonl")) << said;
    EXPECT_EQ(read_json_lines(output / "metrics.jsonl").size(), 4u);
    EXPECT_THAT(said, HasSubstr("rank 0 of 2 (local rank 0), started by SLURM; rank 0 at 127.0.0.1:" +
                                std::to_string(29500 + model)));
    EXPECT_THAT(said, HasSubstr("training_data_node_" + std::to_string(model) + ".jsonl"));
  }
}

TEST_F(Slurm, ScancelAsTheScriptSaysSavesFirst) {
  const std::vector<std::string> endless = {"max_steps=1000000", "save_steps=1000000"};
  const std::string job = submit("-n 2 --device cpu", runs_.words("run", endless));
  const fs::path metrics = folder_ / "run" / "metrics.jsonl";
  ASSERT_TRUE(soon([&] { return fs::exists(metrics) && !read_json_lines(metrics).empty(); })) << state_of(job);
  EXPECT_EQ(cluster_->run("scancel --signal=TERM " + job).code, 0);
  ASSERT_TRUE(soon([&] { return has_ended(job); })) << state_of(job);
  const std::string said = log("rank_0.log");
  EXPECT_THAT(said.substr(said.size() - std::min<size_t>(said.size(), 500)),
              HasSubstr("stopped by SIGTERM: go on with resume=auto"));
  EXPECT_THAT(names_in(folder_ / "run"), Contains(::testing::StartsWith("checkpoint-")));
}

}  // namespace
}  // namespace hone
