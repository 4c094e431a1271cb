// Who started this process, as which rank of how many: what launchers say in environment variables.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace hone {

struct LaunchEnvironment {
  /// "torchrun", "hand" (as torchrun, without it), "Open MPI", "SLURM", "PMI"; "" for a process that was started alone
  std::string launcher;
  int rank = 0, world_size = 1;
  int local_rank = 0;  ///< among the ranks of this host: the GPU it takes
  int local_size = 1;  ///< ranks of this host, which share its cores
  std::string host;    ///< where rank 0 listens
  /// Ports that rank 0 tries to listen at, in turn; the others look for it at each.
  std::vector<int> ports;
  std::string run;   ///< tells the launcher's jobs apart, where it names them
  bool mpi = false;  ///< MPI can find the ranks: the launcher speaks PMIx
  /// All ranks are on one host, as the launcher or the address of rank 0 says. False: perhaps not.
  bool one_host = false;

  /// "rank 1 of 4 (local rank 1), started by torchrun; rank 0 at node7:29500"
  std::string describe() const;
};

/// Reads, in this order: torchrun's RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (also of those who set them
/// by hand); Open MPI's OMPI_COMM_WORLD_*; those of a SLURM step (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID,
/// and the first host of SLURM_STEP_NODELIST); PMI_RANK and PMI_SIZE. MASTER_ADDR and MASTER_PORT count for all; where
/// all ranks are on one host, rank 0 listens on its loopback whatever MASTER_ADDR says. A batch script outside srun is
/// not a rank. Throws UserError: incomplete, impossible or contradicting variables.
LaunchEnvironment launch_environment(const std::function<const char*(const char*)>& variable);
LaunchEnvironment launch_environment();

/// The first host of a SLURM list: "gpu[003-005,9],login1" → "gpu003".
std::string first_slurm_host(const std::string& list);

}  // namespace hone
