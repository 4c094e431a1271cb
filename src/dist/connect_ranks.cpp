#include "dist/connect_ranks.h"

#include "dist/cpu_communicator.h"
#include "dist/mpi_transport.h"
#include "dist/nccl_communicator.h"
#include "dist/tcp_transport.h"

namespace hone {

std::unique_ptr<Communicator> connect_ranks(std::unique_ptr<ControlChannel> control,
                                            const LaunchEnvironment& environment, Stream& stream) {
  HONE_ASSERT(control->size() > 1, "one rank alone needs no communicator");
  if (stream.device().kind == DeviceKind::kCuda) return connect_nccl(std::move(control), stream);
  const bool some_without_mpi = control->any(!environment.mpi || !mpi_is_built());
  std::unique_ptr<Transport> transport = some_without_mpi ? connect_tcp(*control) : start_mpi(*control);
  return std::make_unique<CpuCommunicator>(std::move(control), std::move(transport));
}

}  // namespace hone
