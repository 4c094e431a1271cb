#include "app/launched_ranks.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>

#include "dist/connect_ranks.h"
#include "dist/launch_environment.h"
#include "dist/rendezvous.h"

namespace hone {

namespace {

/// The ranks of this host, where the launcher says how many; else those that are known to be there.
int local_size_of(const LaunchEnvironment& environment) {
  for (const char* name :
       {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"}) {
    if (const char* text = std::getenv(name)) return std::max(environment.local_rank + 1, std::atoi(text));
  }
  return environment.local_rank + 1;
}

}  // namespace

TrainerRanks launched_ranks() {
  const LaunchEnvironment environment = launch_environment();
  TrainerRanks ranks;
  ranks.rank = environment.rank;
  ranks.size = environment.world_size;
  ranks.local_rank = environment.local_rank;
  if (ranks.size == 1) return ranks;
  ranks.local_size = local_size_of(environment);
  ranks.connect = [environment](Stream& stream) { return connect_ranks(rendezvous(environment), stream); };
  return ranks;
}

Terminal terminal_of(const TrainerRanks& ranks, int fd) {
  if (ranks.rank == 0) return Terminal::of(fd);
  static const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  return Terminal{.fd = nowhere};
}

}  // namespace hone
