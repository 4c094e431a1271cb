// How the ranks of a run find each other: rank 0 listens, the others come, and the connections stay as the run's
// control channel. What is said is not secret and nobody proves who they are: use it within a network that is trusted.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/control_channel.h"
#include "dist/launch_environment.h"

namespace hone {

/// Waits until all ranks are there. Throws UserError: ranks of other sizes or versions of the program, two that are the
/// same rank; Error(kDeviceFailed): ranks that have not come in `times.rendezvous` (named), rank 0 not found.
/// `notice` is told, once, whom this rank still waits for after `times.notice`.
std::unique_ptr<ControlChannel> rendezvous(const LaunchEnvironment& environment, const ControlTimes& times = {},
                                           const std::function<void(const std::string&)>& notice = {});

}  // namespace hone
