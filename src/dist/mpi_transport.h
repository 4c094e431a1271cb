// Messages between CPU ranks that mpirun or srun has started.
#pragma once

#include <memory>

#include "dist/control.h"
#include "dist/transport.h"

namespace hone {

/// Starts MPI; once in a process, by the thread that also destroys it. `control`, of the same ranks, outlives it and
/// says when waiting has no sense any more. Throws UserError: the program has no MPI, MPI's ranks are not the
/// control's.
std::unique_ptr<Transport> start_mpi(Control& control);

}  // namespace hone
