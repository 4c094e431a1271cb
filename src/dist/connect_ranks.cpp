#include "dist/connect_ranks.h"

#include <cstdlib>

#include "dist/cpu_communicator.h"
#include "dist/mpi_transport.h"
#include "dist/nccl_communicator.h"
#include "dist/shared_memory_transport.h"
#include "dist/tcp_transport.h"

namespace hone {

namespace {

/// NCCL and MPI open ports of their own, which check nobody: where all ranks are on one host they need none but the
/// loopback's. What the user or a launcher has set stays. (Open MPI's TCP transport listens at all addresses, whatever
/// interfaces it is told to use, so it is left out: memory that ranks share is there.)
void keep_libraries_off_the_network() {
  ::setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  if (std::getenv("OMPI_MCA_btl_tcp_if_include") || std::getenv("OMPI_MCA_btl_tcp_if_exclude")) return;
  ::setenv("OMPI_MCA_btl", "^tcp,ofi", /*overwrite=*/0);
}

}  // namespace

std::unique_ptr<Communicator> connect_ranks(std::unique_ptr<ControlChannel> control,
                                            const LaunchEnvironment& environment, Stream& stream) {
  HONE_ASSERT(control->size() > 1, "one rank alone needs no communicator");
  if (control->on_one_host()) keep_libraries_off_the_network();
  if (stream.device().kind == DeviceKind::kCuda) return connect_nccl(std::move(control), stream);
  const bool some_without_mpi = control->any(!environment.mpi || !mpi_is_built());
  std::unique_ptr<Transport> transport;
  if (some_without_mpi && control->on_one_host()) transport = connect_shared_memory(*control);
  if (!transport) transport = some_without_mpi ? connect_tcp(*control) : start_mpi(*control);
  return std::make_unique<CpuCommunicator>(std::move(control), std::move(transport));
}

}  // namespace hone
