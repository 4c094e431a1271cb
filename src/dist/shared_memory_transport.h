// Messages between CPU ranks that are processes of one host: through memory that they share, with no port that anybody
// could connect to.
#pragma once

#include <memory>

#include "dist/control_channel.h"
#include "dist/transport.h"

namespace hone {

/// A ring for each pair of ranks and direction, in anonymous memory of the receiving rank, which the others open below
/// /proc: the system lets only this user do that. All ranks call it. Nothing, on all of them, where one cannot reach
/// another's memory (other users, containers, hosts). `control` outlives it. Throws Error(kDeviceFailed): a rank is
/// lost.
std::unique_ptr<Transport> connect_shared_memory(ControlChannel& control);

}  // namespace hone
