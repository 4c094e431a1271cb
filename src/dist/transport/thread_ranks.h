// Ranks that are threads of one process, for tests of distributed code.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dist/transport/communicator.h"

namespace hone {

/// The communicators of `count` ranks. Each needs its own thread and CPU stream.
std::vector<std::unique_ptr<Communicator>> thread_ranks(int count);

/// Calls body(communicator) in `count` threads, one per rank. An exception in one ends the group for all ranks; the
/// first exception is rethrown here.
void run_ranks(int count, const std::function<void(Communicator&)>& body);

}  // namespace hone
