// Tests of ranks started by launchers: mpirun, torchrun, a local SLURM cluster of two nodes, and hone launch on several
// hosts. A test is skipped if its launcher is not installed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "app/launch/launch_scripts.h"
#include "program.h"
#include "rank_runs.h"
#include "shell.h"

namespace hone {
namespace {

// Ranks started by mpirun, and ranks started by hand: collectives, and messages about lost ranks.

using ::testing::HasSubstr;
using ::testing::Not;

enum class Start { kMpirun, kByHand };

class LaunchedRanks : public ::testing::TestWithParam<Start> {
 protected:
  void SetUp() override {
    if (GetParam() == Start::kByHand) return;
    if (const std::string why = why_no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  }

  static ShellOutcome run(int ranks, const std::string& arguments) {
    const std::string check = std::string(HONE_RANKS_CHECK) + " " + arguments, count = std::to_string(ranks);
    if (GetParam() == Start::kMpirun) {
      const std::string root = ::geteuid() == 0 ? " --allow-run-as-root" : "";
      return run_shell("timeout 120 mpirun -n " + count + root + " --oversubscribe --bind-to none --enable-recovery " +
                       check);
    }
    const std::string last = std::to_string(ranks - 1), port = std::to_string(20000 + ::getpid() % 20000);
    return run_shell("export WORLD_SIZE=" + count + " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port +
                     "; pids=; for r in $(seq 0 " + last + "); do RANK=$r LOCAL_RANK=$r timeout 120 " + check +
                     " & pids=\"$pids $!\"; done; worst=0; for p in $pids; do wait $p || worst=$?; done; exit $worst");
  }
};

TEST_P(LaunchedRanks, CollectivesHoldOnTwoAndThree) {
  for (const int ranks : {2, 3}) {
    const ShellOutcome result = run(ranks, "");
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_THAT(result.out, HasSubstr("all collectives held"));
    EXPECT_THAT(result.out, Not(HasSubstr("did not hold")));
    const std::string launcher = GetParam() == Start::kMpirun ? "Open MPI" : "hand";
    EXPECT_THAT(result.out,
                HasSubstr("rank 0 of " + std::to_string(ranks) + " (local rank 0), started by " + launcher));
  }
}

TEST_P(LaunchedRanks, AKilledRankIsNamedToTheOthers) {
  const std::string output = run(3, "--fault kill").out;
  for (const std::string survivor : {"rank 0: after ", "rank 2: after "}) EXPECT_THAT(output, HasSubstr(survivor));
  EXPECT_THAT(output,
              ::testing::ContainsRegex("rank 1 \\(.*, pid [0-9]+\\) is lost: its connection has ended; last seen"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_P(LaunchedRanks, ARankThatKeepsTheOthersWaitingIsNamedAndEnded) {
  const std::string output = run(3, "--fault hang").out;
  EXPECT_THAT(output,
              ::testing::ContainsRegex(
                  "all-reduce number 28 of step 10 has waited .* for rank 1 \\(.*\\), which is at step 10 and has "
                  "reached 27 collectives"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_P(LaunchedRanks, AStoppedRankIsNamedAndEnded) {
  const std::string output = run(2, "--fault stop").out;
  EXPECT_THAT(output, HasSubstr("is lost: nothing was heard of it for 1"));
  EXPECT_THAT(output, HasSubstr("[lost: 1]"));
}

TEST_P(LaunchedRanks, WhyARankFailedIsToldToTheOthers) {
  const std::string output = run(3, "--fault fail").out;
  for (const std::string rank : {"rank 0: after ", "rank 2: after "}) EXPECT_THAT(output, HasSubstr(rank));
  EXPECT_THAT(output, HasSubstr("failed: no space left on device [lost: 1]"));
}

INSTANTIATE_TEST_SUITE_P(By, LaunchedRanks, ::testing::Values(Start::kMpirun, Start::kByHand),
                         [](const auto& start) { return start.param == Start::kMpirun ? "Mpirun" : "Hand"; });

/// What a launcher sets for rank $r of two on one host, as a shell's assignments.
struct LauncherVariables {
  const char *launcher, *variables;
};

class VariablesOfLaunchers : public ::testing::TestWithParam<LauncherVariables> {};

TEST_P(VariablesOfLaunchers, AreEnoughForTwoRanks) {
  const std::string ranks = "for r in 0 1; do env -i HOME=\"$HOME\" " + std::string(GetParam().variables) +
                            " MASTER_PORT=" + std::to_string(20000 + ::getpid() % 20000) + " timeout 60 " +
                            HONE_RANKS_CHECK + " & pids=\"$pids $!\"; done; worst=0; ";
  const ShellOutcome outcome = run_shell(ranks + "for p in $pids; do wait $p || worst=$?; done; exit $worst");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr(std::string("rank 1 of 2 (local rank 1), started by ") + GetParam().launcher +
                                     "; rank 0 at 127.0.0.1:"));
  EXPECT_THAT(outcome.out, HasSubstr("all collectives held"));
}

INSTANTIATE_TEST_SUITE_P(
    Of, VariablesOfLaunchers,
    ::testing::Values(
        LauncherVariables{"Open MPI",
                          "OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$r "
                          "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_ess_base_jobid=123 PMIX_RANK=$r"},
        LauncherVariables{"PMI", "PMI_RANK=$r PMI_SIZE=2 MPI_LOCALRANKID=$r MPI_LOCALNRANKS=2"},
        LauncherVariables{"SLURM",
                          "SLURM_PROCID=$r SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=$r SLURM_STEP_TASKS_PER_NODE=2 "
                          "SLURM_STEP_NODELIST=node7 SLURM_JOB_ID=7 SLURM_STEP_ID=0"},
        LauncherVariables{"torchrun",
                          "RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none "
                          "MASTER_ADDR=127.0.0.1"}),
    [](const auto& of) { return of.index == 0 ? std::string("OpenMpi") : std::string(of.param.launcher); });

namespace fs = std::filesystem;
using ::testing::Contains;

/// Ports that concurrent tests do not use.
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
  // Two agents, as on two hosts: the store of the first listens at MASTER_PORT.
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

/// A SLURM controller and a node on this machine, with their own key and ports.
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

  /// Why the cluster does not run; "" if it runs.
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

  /// Writes the script of hone launch --slurm in the folder and submits it; returns the job's number.
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

// Must be the first: SLURM 22.05 does not launch a step with PMIx on a node that has run one without.
TEST_F(Slurm, SrunWithPmixStartsRanks) {
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
  // Two models at once, each with two ranks: ranks of one model must not connect to those of the other.
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
              HasSubstr("stopped by SIGTERM: resume with resume=auto"));
  EXPECT_THAT(names_in(folder_ / "run"), Contains(::testing::StartsWith("checkpoint-")));
}

// hone launch on other machines. Two network namespaces with a virtual cable act as hosts.

TEST(Launch, SaysWhatItWouldStartElsewhere) {
  const Outcome ssh = run_hone({"launch", "--hosts", "me@a,b", "-n", "2", "--device", "cuda", "--env", "X=1",
                                "--dry-run", "--", "train", "run.yaml", "--max_steps", "3"});
  ASSERT_EQ(ssh.code, 0) << ssh.err;
  EXPECT_THAT(ssh.out,
              HasSubstr("start b rank_2.log 'RANK=2 LOCAL_RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=29500 " +
                        hone_program() + " train run.yaml --max_steps 3'"));
  const Outcome variable = run_hone({"launch", "--hosts", "a,b", "--device", "cuda", "--dry-run", "--env", "X=1",
                                     "--env", "Y=2", "--", "train", "run.yaml"});
  EXPECT_THAT(variable.out, HasSubstr("environment=' HONE_COLLECTED_LOG=1 X=1 Y=2'")) << variable.err;
  const Outcome cpu = run_hone({"launch", "--hosts", "a,b", "--device", "cpu", "--dry-run", "--", "train", "run.yaml"});
  EXPECT_THAT(cpu.out, HasSubstr("environment=' HONE_COLLECTED_LOG=1 CUDA_VISIBLE_DEVICES=-1'"));
  EXPECT_THAT(cpu.out, HasSubstr("start b rank_1.log 'RANK=1 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=a"));
  const Folder folder;
  const std::string script = (folder / "job.slurm").string();
  const std::vector<std::string> slurm = {"launch", "--slurm", "--independent", "4",       "--script",
                                          script,   "--",      "train",         "run.yaml"};
  const Outcome written = run_hone(slurm);
  ASSERT_EQ(written.code, 0) << written.err;
  EXPECT_THAT(written.out, HasSubstr("4 independent models"));
  EXPECT_THAT(written.out, HasSubstr("sbatch " + script));
  EXPECT_THAT(read_file(script), HasSubstr("#SBATCH --array=0-3\n"));
  EXPECT_THAT(run_hone(slurm).err, HasSubstr("--force"));
}

TEST(Launch, RefusesWhatCannotBeStarted) {
  const auto expect = [](const std::vector<std::string>& arguments, const char* text) {
    const Outcome outcome = run_hone(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  expect({"launch", "--hosts", "a,b", "--", "trian", "run.yaml"}, "Did you mean 'train'?");
  expect({"launch", "--hosts", "a;b", "--", "train", "run.yaml"}, "is not a host");
  expect({"launch", "--hosts", "a,b", "--independent", "3", "--", "train", "run.yaml"}, "3 models on 2 hosts");
  expect({"launch", "--independent", "3", "--", "train", "run.yaml"}, "--hosts");
  expect({"launch", "--slurm", "--hosts", "a", "--", "train", "run.yaml"}, "SLURM chooses the hosts");
}

/// Two network namespaces with a virtual cable and their own host names.
class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* program : {"ip", "unshare"}) {
      if (run_shell(std::string(program) + " -V").code != 0) {
        GTEST_SKIP() << "no " << program << ": install iproute2 and util-linux";
      }
    }
    for (int host = 1; host <= 2; ++host) {
      const ShellOutcome outcome = run_shell("ip netns add " + name(host));
      if (outcome.code != 0) GTEST_SKIP() << "no right to make network namespaces: " << outcome.out;
    }
    const ShellOutcome cable = run_shell("ip link add " + name(1) + " netns " + name(1) + " type veth peer name " +
                                         name(2) + " netns " + name(2));
    if (cable.code != 0) GTEST_SKIP() << "no right to make network devices: " << cable.out;
    for (int host = 1; host <= 2; ++host) {
      const std::string ip = "ip -n " + name(host);
      ASSERT_EQ(run_shell(ip + " addr add " + address(host) + "/24 dev " + name(host) + " && " + ip + " link set " +
                          name(host) + " up && " + ip + " link set lo up")
                    .code,
                0);
    }
    // HOST WORDS...: a shell on the host with this address.
    agent_ =
        script("agent", "host=${1##*.}\nshift\nexec ip netns exec " + stem() + "$host unshare --uts sh -c 'hostname " +
                            stem() + "'$host'; exec sh -c \"$*\"' sh \"$*\"\n");
  }

  ~TwoHosts() override {
    for (int host = 1; host <= 2; ++host) run_shell("ip netns del " + name(host));
  }

  static std::string stem() { return "hone" + std::to_string(::getpid()) + "-"; }
  static std::string name(int host) { return stem() + std::to_string(host); }
  static std::string address(int host) {
    return "10.213." + std::to_string(::getpid() % 250) + "." + std::to_string(host);
  }

  std::string script(const std::string& file, const std::string& body) const {
    const std::string path = folder_.write(file, "#!/bin/sh\n" + body);
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }

  /// Runs a command in the folder on a host.
  ShellOutcome on_host(int host, const std::string& command) const {
    const std::string file = folder_.write("command", "cd '" + (folder_ / "").string() + "' && " + command + "\n");
    return run_shell("timeout 300 " + agent_ + " " + address(host) + " exec sh " + file);
  }
  ShellOutcome run_script(const std::string& text) const {
    folder_.write("launch.sh", text);
    return on_host(1, "exec bash launch.sh");
  }

  /// A command line by which mpirun starts two ranks on each host.
  std::string mpirun(const std::string& command, const std::string& options) const {
    const std::string root = ::geteuid() == 0 ? " --allow-run-as-root" : "";
    return "mpirun -n 4 --host " + address(1) + ":2," + address(2) + ":2 --bind-to none --mca plm_rsh_agent " + agent_ +
           root + " -x HONE_RUN_SECRET=0123456789abcdef " + options + " " + command + "\n";
  }

  LaunchPlan plan(const std::string& program, const std::vector<std::string>& command, int ranks_per_host) const {
    LaunchPlan plan;
    plan.program = program;
    plan.command = command;
    plan.directory = folder_ / "";
    plan.ranks_per_host = ranks_per_host;
    return plan;
  }
  SshHosts hosts() const {
    SshHosts hosts;
    hosts.hosts = {address(1), address(2)};
    hosts.ssh = agent_;
    return hosts;
  }

  Folder folder_;
  std::string agent_;
};

TEST_F(TwoHosts, StartedByMpirunFindEachOtherAndSumTheirTensors) {
  if (const std::string why = why_no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  const ShellOutcome outcome = run_script(mpirun(HONE_RANKS_CHECK, "-x MASTER_ADDR=" + address(1)));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("rank 3 of 4 (local rank 1), started by Open MPI; rank 0 at " + address(1)));
  EXPECT_THAT(outcome.out, HasSubstr("all collectives held"));
}

TEST_F(TwoHosts, TrainOneModelStartedByMpirun) {
  if (const std::string why = why_no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  const RankRuns runs(folder_);
  const ShellOutcome outcome = run_script(mpirun(hone_program() + runs.words("run"), "-x MASTER_ADDR=" + address(1)));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("rank 1 (" + name(1) + ", pid "));
  EXPECT_THAT(outcome.out, HasSubstr("rank 2 (" + name(2) + ", pid "));
  runs.expect_losses_of_one_rank("run");
}

TEST_F(TwoHosts, StartedByMpirunWithoutTheAddressOfRank0SayHowToPassIt) {
  if (const std::string why = why_no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  const ShellOutcome outcome = run_script(mpirun(HONE_RANKS_CHECK, ""));
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("the address of rank 0 is not known"));
}

TEST_F(TwoHosts, TrainOneModelStartedOverSsh) {
  const RankRuns runs(folder_);
  const ShellOutcome outcome = run_script(ssh_script(plan(hone_program(), runs.arguments("run"), 2), hosts()));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  const std::string log = read_file(folder_ / "logs" / "rank_0.log");
  EXPECT_THAT(log, HasSubstr("rank 0 of 4 (local rank 0), started by hand; rank 0 at " + address(1)));
  EXPECT_THAT(log, HasSubstr("rank 2 (" + name(2) + ", pid "));
  runs.expect_losses_of_one_rank("run");
}

/// Two hosts with sshd; in the user's ssh configuration they are left and right.
class TwoHostsWithSsh : public TwoHosts {
 protected:
  void SetUp() override {
    TwoHosts::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const std::string sshd = "/usr/sbin/sshd", here = (folder_ / "").string();
    if (!fs::exists(sshd) || run_shell("ssh -V").code != 0) GTEST_SKIP() << "no sshd: install openssh-server";
    for (const std::string key : {"host_key", "key"}) {
      ASSERT_EQ(run_shell("ssh-keygen -q -t ed25519 -N '' -f " + here + key).code, 0);
    }
    run_shell("mkdir -p /run/sshd");  // sshd, started by root, requires this empty folder
    std::string config;
    for (int host = 1; host <= 2; ++host) {
      const std::string file = folder_.write("sshd_" + std::to_string(host),
                                             "Port 2222\nListenAddress " + address(host) + "\nHostKey " + here +
                                                 "host_key\nAuthorizedKeysFile " + here + "key.pub\nPidFile " + here +
                                                 "sshd.pid." + std::to_string(host) + "\nStrictModes no\nUsePAM no\n");
      const ShellOutcome started =
          run_shell(agent_ + " " + address(host) + " '" + sshd + " -f " + file + " -E " + here + "sshd.log'");
      ASSERT_EQ(started.code, 0) << started.out;
      config += "Host " + std::string(host == 1 ? "left" : "right") + "\n  HostName " + address(host) + "\n";
    }
    config += "Host *\n  Port 2222\n  IdentityFile " + here + "key\n  UserKnownHostsFile " + here +
              "known\n  StrictHostKeyChecking accept-new\n  BatchMode yes\n";
    folder_.write("ssh_config", config);
    const ShellOutcome reached =
        on_host(1, "for i in 1 2 3 4 5; do ssh -F ssh_config right true && break; sleep 1; done");
    ASSERT_EQ(reached.code, 0) << reached.out << read_file(folder_ / "sshd.log");
  }
  ~TwoHostsWithSsh() override {
    for (const char* host : {"1", "2"})
      run_shell("kill $(cat '" + (folder_ / "sshd.pid.").string() + host + "' 2> /dev/null)");
  }

  /// Runs hone launch on the first host, which reaches the second through ssh's configuration.
  ShellOutcome launch(const std::string& options, const std::string& words) const {
    return on_host(1, hone_program() + " launch --hosts left,right --ssh 'ssh -F ssh_config' --master " + address(1) +
                          " " + options + " --" + words);
  }
};

TEST_F(TwoHostsWithSsh, TrainByHoneLaunch) {
  const RankRuns runs(folder_);
  const ShellOutcome outcome = launch("-n 2 --device cpu", runs.words("run"));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("right: ranks 2 to 3"));
  runs.expect_losses_of_one_rank("run");
}

/// Keys under which ranks of several hosts share the tiny model's weights.
const std::vector<std::string> kSharded = {"zero_stage=3", "stage3_param_persistence_threshold=0"};

TEST_F(TwoHostsWithSsh, TrainAndAnswerWithWeightsThatTheyShare) {
  const RankRuns runs(folder_);
  // All four ranks shard, then the two of each host; and experts are spread over both hosts.
  const std::map<std::string, std::vector<std::string>> layouts = {
      {"sharded", {}}, {"in_groups", {"dp_shard_size=2"}}, {"spread", {"expert_parallel_size=4"}}};
  for (const auto& [output, more] : layouts) {
    std::vector<std::string> keys = kSharded;
    keys.insert(keys.end(), more.begin(), more.end());
    const ShellOutcome outcome = launch("-n 2 --device cpu", runs.words(output, keys));
    EXPECT_EQ(outcome.code, 0) << outcome.out;
    runs.expect_losses_of_one_rank(output);
  }
  const std::string evaluation =
      " eval model_name_or_path=sharded datasets=data.jsonl dtype=float32 max_length=32 --json";
  const ShellOutcome together = launch(
                         "-n 1 --device cpu",
                         evaluation + " zero_stage=3 stage3_param_persistence_threshold=0 --output together.json"),
                     alone = on_host(1, hone_program() + evaluation + " --output alone.json");
  ASSERT_EQ(together.code, 0) << together.out;
  ASSERT_EQ(alone.code, 0) << alone.out;
  EXPECT_NEAR(Json::parse(read_file(folder_ / "together.json"))["eval_loss"].get<double>(),
              Json::parse(read_file(folder_ / "alone.json"))["eval_loss"].get<double>(), 1e-12);
}

TEST_F(TwoHostsWithSsh, AHostThatIsNotThereEndsTheOthers) {
  const RankRuns runs(folder_);
  ASSERT_EQ(run_shell("kill $(cat '" + (folder_ / "sshd.pid.2").string() + "')").code, 0);
  SshHosts hosts{.hosts = {"left", "right"}, .master = address(1), .ssh = "ssh -F ssh_config"};
  std::string script = ssh_script(plan(hone_program(), runs.arguments("run"), 1), hosts);
  const std::string patience = "patience=60 ";
  ASSERT_THAT(script, HasSubstr(patience));
  const ShellOutcome outcome = run_script(script.replace(script.find(patience), patience.size(), "patience=2 "));
  EXPECT_EQ(outcome.code, 255) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("right: exit code 255; the end of logs/rank_1.log:"));
  EXPECT_THAT(outcome.out, HasSubstr("Connection refused"));
}

}  // namespace
}  // namespace hone
