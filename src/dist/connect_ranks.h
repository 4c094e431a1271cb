// From ranks that have found each other to ranks that train together.
#pragma once

#include <memory>

#include "dist/communicator.h"
#include "dist/control_channel.h"
#include "dist/launch_environment.h"

namespace hone {

/// The communicator of `control`'s ranks, two or more, for tensors on the device of `stream`: NCCL on GPUs; on CPUs
/// MPI, where that has started the ranks and the program has it, otherwise memory that they share or TCP. Throws
/// UserError: the program was built without what is needed.
std::unique_ptr<Communicator> connect_ranks(std::unique_ptr<ControlChannel> control,
                                            const LaunchEnvironment& environment, Stream& stream);

}  // namespace hone
