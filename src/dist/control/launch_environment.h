// LaunchEnvironment: the launcher, rank and number of ranks of this process, from environment variables.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace hone {

struct LaunchEnvironment {
  /// "torchrun", "hand" (torchrun's variables without torchrun), "Open MPI", "SLURM", "PMI" (MPICH, Intel MPI); "" for
  /// a single process
  std::string launcher;
  int rank = 0, world_size = 1;
  int local_rank = 0;  ///< among the ranks of this host; the index of its GPU
  int local_size = 1;  ///< ranks of this host, which share its cores
  std::string host;    ///< where rank 0 listens
  /// Ports at which rank 0 tries to listen, in order; the other ranks try to connect to each.
  std::vector<int> ports;
  std::string run;  ///< the launcher's name of the job, or ""
  /// All ranks are on one host, by the launcher's variables or the address of rank 0. False: not known.
  bool one_host = false;

  /// "rank 1 of 4 (local rank 1), started by torchrun; rank 0 at node7:29500"
  std::string describe() const;
};

/// Reads, in this order: torchrun's RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (also if set by hand); Open
/// MPI's OMPI_COMM_WORLD_*; PMI_RANK, PMI_SIZE and MPI_LOCALRANKID of MPICH's and Intel MPI's mpirun; those of a SLURM
/// step (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, and the first host of SLURM_STEP_NODELIST); PMI_RANK and
/// PMI_SIZE alone. MASTER_ADDR and MASTER_PORT apply to all launchers; if all ranks are on one host, rank 0 listens on
/// the loopback and MASTER_ADDR has no effect. Without MASTER_ADDR, ranks that an mpirun started in a SLURM job take
/// the job's first host. A batch script outside srun is not a rank. Throws UserError for incomplete, impossible or
/// contradicting variables, and if the host of rank 0 is not known.
LaunchEnvironment launch_environment(const std::function<const char*(const char*)>& variable);
LaunchEnvironment launch_environment();

/// The first host of a SLURM list: "gpu[003-005,9],login1" → "gpu003".
std::string first_slurm_host(const std::string& list);

}  // namespace hone
