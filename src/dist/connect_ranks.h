// From ranks that have found each other to ranks that train together.
#pragma once

#include <memory>

#include "dist/communicator.h"

namespace hone {

/// The communicator of `control`'s ranks, two or more, for tensors on the device of `stream`: NCCL on GPUs, MPI on
/// CPUs. Throws UserError: the program was built without what is needed, or not started by it.
std::unique_ptr<Communicator> connect_ranks(std::unique_ptr<Control> control, Stream& stream);

}  // namespace hone
