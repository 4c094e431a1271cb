#include "dist/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/error.h"

namespace hone {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment detect(const Variables& variables) {
  return launch_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  try {
    detect(variables);
  } catch (const UserError& error) {
    return error.message();
  }
  return "no error";
}

TEST(LaunchEnvironment, AProcessThatWasStartedAloneIsOneRank) {
  const LaunchEnvironment alone = detect({{"HOME", "/"}});
  EXPECT_EQ(alone.world_size, 1);
  EXPECT_EQ(alone.launcher, "");
  EXPECT_EQ(alone.describe(), "one process");
}

TEST(LaunchEnvironment, TorchrunSaysAllAndKeepsItsPort) {
  Variables variables = {{"RANK", "3"},         {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "n7"}, {"MASTER_PORT", "12345"}, {"TORCHELASTIC_RUN_ID", "r1"}};
  LaunchEnvironment found = detect(variables);
  EXPECT_EQ(found.describe(), "rank 3 of 8 (local rank 1), started by torchrun; rank 0 at n7:12345");
  EXPECT_EQ(found.run, "r1");
  EXPECT_EQ(found.ports.size(), 8u);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(detect(variables).ports.front(), 12346);
}

TEST(LaunchEnvironment, OpenMpiOnOneHostNeedsNoAddress) {
  const LaunchEnvironment found = detect({{"OMPI_COMM_WORLD_RANK", "1"},
                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                          {"OMPI_MCA_ess_base_jobid", "123456"}});
  EXPECT_EQ(found.launcher, "Open MPI");
  EXPECT_EQ(found.host, "127.0.0.1");
  EXPECT_EQ(found.rank, 1);
  EXPECT_GE(found.ports.front(), 29500);
  EXPECT_LT(found.ports.back(), 65536);
}

TEST(LaunchEnvironment, OpenMpiOnSeveralHostsAsksForTheAddress) {
  EXPECT_EQ(
      error_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
      "where rank 0 listens is not known");
}

TEST(LaunchEnvironment, ASlurmStepNamesItsFirstHost) {
  Variables variables = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_STEP_NUM_TASKS", "8"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_STEP_NODELIST", "gpu[003-006]"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x4)"}};
  const LaunchEnvironment found = detect(variables);
  EXPECT_EQ(found.launcher, "SLURM");
  EXPECT_EQ(found.host, "gpu003");
  EXPECT_EQ(found.run, "77.0");
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 2);
  variables["SLURM_STEP_TASKS_PER_NODE"] = "8";  // one node, whatever its name
  EXPECT_EQ(detect(variables).host, "127.0.0.1");
  variables.erase("SLURM_STEP_NUM_TASKS");  // the batch script itself
  EXPECT_EQ(detect(variables).world_size, 1);
}

TEST(LaunchEnvironment, PmiCountsToo) {
  const LaunchEnvironment found = detect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(found.launcher, "PMI");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.local_rank, 1);
}

TEST(LaunchEnvironment, TorchrunUnderSlurmIsTorchruns) {
  const LaunchEnvironment found = detect({{"SLURM_PROCID", "1"},
                                          {"SLURM_STEP_NUM_TASKS", "2"},
                                          {"RANK", "9"},
                                          {"WORLD_SIZE", "16"},
                                          {"LOCAL_RANK", "1"},
                                          {"MASTER_ADDR", "n0"},
                                          {"TORCHELASTIC_RUN_ID", "none"}});
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.rank, 9);
}

TEST(LaunchEnvironment, MpiIsForThoseWhomItsLauncherStarted) {
  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_RANK", "1"}};
  EXPECT_TRUE(detect(mpirun).mpi);
  Variables srun = {{"SLURM_PROCID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "2"},
                    {"SLURM_STEP_NODELIST", "a"},
                    {"SLURM_STEP_TASKS_PER_NODE", "2"}};
  EXPECT_FALSE(detect(srun).mpi);
  EXPECT_EQ(detect(srun).host, "127.0.0.1");
  srun["PMI_RANK"] = "0";  // of PMI-2, which Open MPI does not speak
  EXPECT_FALSE(detect(srun).mpi);
  srun["PMIX_RANK"] = "0";
  EXPECT_TRUE(detect(srun).mpi);
  // Ranks of a torchrun below srun have the variables of torchrun's own process.
  srun.insert({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"TORCHELASTIC_RUN_ID", "none"}});
  EXPECT_EQ(detect(srun).launcher, "torchrun");
  EXPECT_FALSE(detect(srun).mpi);
}

TEST(LaunchEnvironment, WhoSetsTheVariablesByHandIsNotTorchrun) {
  Variables variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  EXPECT_EQ(detect(variables).launcher, "hand");
  variables["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_EQ(detect(variables).launcher, "torchrun");
}

TEST(LaunchEnvironment, WhatCannotBeIsAnError) {
  EXPECT_EQ(error_of({{"RANK", "1"}}), "RANK is set, but WORLD_SIZE is not");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "2"}}), "WORLD_SIZE is set, but RANK is not");
  EXPECT_EQ(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK=2 and WORLD_SIZE=2 cannot be: ranks count from 0");
  EXPECT_EQ(error_of({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), "RANK=-1 is not a number from 0");
  EXPECT_EQ(error_of({{"RANK", "0x"}, {"WORLD_SIZE", "2"}}), "RANK=0x is not a number from 0");
  EXPECT_EQ(error_of({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE=99999999999 is not a number from 0");
  EXPECT_EQ(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "where rank 0 listens is not known");
  EXPECT_EQ(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}),
            "70000 is not a port");
  EXPECT_EQ(
      error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
      "RANK and WORLD_SIZE say rank 0 of 2, Open MPI says rank 1 of 2");
}

TEST(LaunchEnvironment, TheFirstHostOfASlurmList) {
  EXPECT_EQ(first_slurm_host("gpu[003-005,9],login1"), "gpu003");
  EXPECT_EQ(first_slurm_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_slurm_host("n[7]"), "n7");
  EXPECT_EQ(first_slurm_host("n[7,9]"), "n7");
  EXPECT_EQ(first_slurm_host("single"), "single");
  EXPECT_EQ(first_slurm_host("broken["), "broken");
  EXPECT_EQ(first_slurm_host(""), "");
}

}  // namespace
}  // namespace hone
