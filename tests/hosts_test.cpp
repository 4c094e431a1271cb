// What hone launch starts on other machines. Two hosts are network namespaces of this one with a cable between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "app/launch/ssh_script.h"
#include "program.h"
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

class TwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_mpi(hone_program()); !why.empty()) GTEST_SKIP() << why;
    if (run_shell("ip -V").code != 0) GTEST_SKIP() << "no ip: install iproute2";
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
    agent_ = folder_.write("agent",
                           "#!/bin/sh\nhost=${1##*.}\nshift\nexec ip netns exec " + stem() + "$host sh -c \"$*\"\n");
    fs::permissions(agent_, fs::perms::owner_all);
  }

  ~TwoHosts() override {
    for (int host = 1; host <= 2; ++host) run_shell("ip netns del " + name(host));
  }

  static std::string stem() { return "hone" + std::to_string(::getpid()) + "-"; }
  static std::string name(int host) { return stem() + std::to_string(host); }
  static std::string address(int host) {
    return "10.213." + std::to_string(::getpid() % 250) + "." + std::to_string(host);
  }

  LaunchPlan plan(const std::string& program, const std::vector<std::string>& command) const {
    LaunchPlan plan;
    plan.program = program;
    plan.command = command;
    plan.directory = folder_ / "";
    return plan;
  }
  /// A rank on each: Open MPI takes equal host names, as these have, for shared memory.
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
  const std::string script = folder_.write("launch.sh", mpirun_script(plan(HONE_RANKS_CHECK, {}), hosts()));
  const ShellOutcome outcome =
      run_shell("cd " + (folder_ / "").string() + " && timeout 300 ip netns exec " + name(1) + " bash " + script);
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("rank 1 of 2 (local rank 0), started by Open MPI; rank 0 at " + address(1)));
  EXPECT_THAT(outcome.out, HasSubstr("all collectives held"));
}

}  // namespace
}  // namespace hone
