// Ranks that are threads of one process: what runs on several machines runs in a test.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dist/communicator.h"

namespace hone {

/// The communicators of `count` ranks, each for a thread (and CPU stream) of its own.
std::vector<std::unique_ptr<Communicator>> thread_ranks(int count);

/// Calls body(communicator) in `count` threads, one a rank. A body that throws fails the group, so that the others end,
/// too; the first exception is thrown here.
void run_ranks(int count, const std::function<void(Communicator&)>& body);

}  // namespace hone
