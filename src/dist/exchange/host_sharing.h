// Sharing of host memory: values that the ranks of a host keep once (params/shared_values.h).
#pragma once

#include "dist/control/control.h"
#include "params/parameter_store.h"

namespace hone {

/// Collective of all ranks, whose stores share the same values: lets each rank of a host read what the others of it
/// fill. Returns once all have called it, so call it when this rank has filled its values, and each time it has filled
/// them anew. Does nothing for a store that shares none. Throws UserError, on all ranks, if the ranks of a host cannot
/// map each other's memory.
void share_values(Control& control, ParameterStore& store);

}  // namespace hone
