#include "dist/connect_ranks.h"

#include "dist/cpu_communicator.h"
#include "dist/mpi_transport.h"
#include "dist/nccl_communicator.h"

namespace hone {

std::unique_ptr<Communicator> connect_ranks(std::unique_ptr<Control> control, Stream& stream) {
  HONE_ASSERT(control->size() > 1, "one rank alone needs no communicator");
  if (stream.device().kind == DeviceKind::kCuda) return connect_nccl(std::move(control), stream);
  std::unique_ptr<Transport> transport = start_mpi(*control);
  return std::make_unique<CpuCommunicator>(std::move(control), std::move(transport));
}

}  // namespace hone
