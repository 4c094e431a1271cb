// Messages between CPU ranks that mpirun or srun has started.
#pragma once

#include <memory>

#include "dist/control.h"
#include "dist/transport.h"

namespace hone {

/// Whether the program has the module that speaks MPI.
bool mpi_is_built();

/// Starts MPI; once in a process, by the thread that also destroys it. `control`, of the same ranks, outlives it and
/// says when waiting has no sense any more. Throws UserError: MPI cannot be loaded or does not start, its ranks are not
/// the control's.
std::unique_ptr<Transport> start_mpi(Control& control);

}  // namespace hone
