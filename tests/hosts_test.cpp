// What hone launch starts on other machines. Two hosts are network namespaces of this one with a cable between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "app/launch/launch_scripts.h"
#include "program.h"
#include "rank_runs.h"
#include "shell.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(Launch, SaysWhatItWouldStartElsewhere) {
  const Outcome ssh = run_hone({"launch", "--hosts", "me@a,b", "-n", "2", "--device", "cuda", "--env", "X=1",
                                "--dry-run", "--", "train", "run.yaml", "--max_steps", "3"});
  ASSERT_EQ(ssh.code, 0) << ssh.err;
  EXPECT_THAT(ssh.out,
              HasSubstr("start b rank_2.log 'RANK=2 LOCAL_RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=29500 " +
                        hone_program() + " train run.yaml --max_steps 3'"));
  const Outcome variable = run_hone({"launch", "--hosts", "a,b", "--device", "cuda", "--dry-run", "--env", "X=1",
                                     "--env", "Y=2", "--", "train", "run.yaml"});
  EXPECT_THAT(variable.out, HasSubstr("environment=' X=1 Y=2'")) << variable.err;
  const Outcome mpi = run_hone({"launch", "--hosts", "a,b", "--device", "cpu", "--dry-run", "--", "train", "run.yaml"});
  EXPECT_THAT(mpi.out, HasSubstr("--host a:1,b:1"));
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

/// Network namespaces with a cable between them; what runs there sees a host name of its own.
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

  /// Runs a command in the folder, on a host.
  ShellOutcome on_host(int host, const std::string& command) const {
    const std::string file = folder_.write("command", "cd '" + (folder_ / "").string() + "' && " + command + "\n");
    return run_shell("timeout 300 " + agent_ + " " + address(host) + " exec sh " + file);
  }
  ShellOutcome run_script(const std::string& text) const {
    folder_.write("launch.sh", text);
    return on_host(1, "exec bash launch.sh");
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

TEST_F(TwoHosts, FindEachOtherAndSumTheirTensors) {
  if (const std::string why = why_no_mpi(HONE_RANKS_CHECK); !why.empty()) GTEST_SKIP() << why;
  const ShellOutcome outcome = run_script(mpirun_script(plan(HONE_RANKS_CHECK, {}, 2), hosts()));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("rank 3 of 4 (local rank 1), started by Open MPI; rank 0 at " + address(1)));
  EXPECT_THAT(outcome.out, HasSubstr("all collectives held"));
}

TEST_F(TwoHosts, TrainOneModelThroughMpi) {
  if (const std::string why = why_no_mpi(hone_program()); !why.empty()) GTEST_SKIP() << why;
  const RankRuns runs(folder_);
  const ShellOutcome outcome = run_script(mpirun_script(plan(hone_program(), runs.arguments("run"), 2), hosts()));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("rank 1 (" + name(1) + ", pid "));
  EXPECT_THAT(outcome.out, HasSubstr("rank 2 (" + name(2) + ", pid "));
  runs.expect_losses_of_one_rank("run");
}

TEST_F(TwoHosts, TrainOneModelWithoutMpi) {
  const RankRuns runs(folder_);
  const ShellOutcome outcome = run_script(ssh_script(plan(hone_program(), runs.arguments("run"), 2), hosts()));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  const std::string log = read_file(folder_ / "logs" / "rank_0.log");
  EXPECT_THAT(log, HasSubstr("rank 0 of 4 (local rank 0), started by hand; rank 0 at " + address(1)));
  EXPECT_THAT(log, HasSubstr("rank 2 (" + name(2) + ", pid "));
  runs.expect_losses_of_one_rank("run");
}

/// With an sshd on each: the user's ssh knows them as left and right.
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
    run_shell("mkdir -p /run/sshd");  // where sshd, started by root, wants to find nothing
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

  /// hone launch on the first host, which knows the second through ssh's configuration.
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
