// Messages between CPU ranks whose launcher does not speak MPI (torchrun, ssh, srun without PMIx): a TCP connection for
// each pair of ranks.
#pragma once

#include <memory>

#include "dist/control_channel.h"
#include "dist/transport.h"

namespace hone {

/// Connects every rank with every other; all call it. The higher one of two comes to the lower, at a port that the
/// system chooses, and both prove that they are of the run (proof.h); where all are on one host, over the loopback.
/// `control` outlives it. Throws Error(kDeviceFailed): a
/// rank that cannot be reached in `seconds`, or is lost.
std::unique_ptr<Transport> connect_tcp(ControlChannel& control, double seconds = 60);

}  // namespace hone
