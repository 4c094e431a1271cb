// Rendezvous of the ranks of a run: rank 0 listens, the other ranks connect, both sides prove that they know the run's
// secret (run_secret.h), and the connections become the run's control channel. Strangers are disconnected and do not
// delay ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/control/launch_environment.h"
#include "dist/control/run_secret.h"
#include "dist/transport/communicator.h"
#include "dist/transport/control_channel.h"

namespace hone {

/// Functions called while a rank waits.
struct RendezvousHooks {
  /// Called with messages for the user, at most once each: the ranks that are missing after ControlTimes::notice; on
  /// rank 0, that a caller had another secret.
  std::function<void(const std::string&)> notice = {};
  /// Called several times a second; throws to stop the wait.
  std::function<void()> check = {};
};

/// Waits until all ranks have connected. Throws UserError if ranks differ in world size or program version, if two
/// processes have the same rank, or if a rank does not have rank 0's secret (within 5 s of finding it). Throws
/// Error(kDeviceFailed) if ranks (listed in the message) do not connect within `times.rendezvous`, or if rank 0 is not
/// found.
std::unique_ptr<ControlChannel> rendezvous(const LaunchEnvironment& environment, const SecretPlaces& secrets,
                                           const ControlTimes& times = {}, const RendezvousHooks& hooks = {});

// The collectives of connected ranks.

/// The communicator of `control`'s ranks, at least two, for tensors on the device of `stream`: NCCL on GPUs; on CPUs
/// shared memory on one host, otherwise TCP. Throws UserError if the program was built without the library that is
/// needed.
std::unique_ptr<Communicator> connect_ranks(std::unique_ptr<ControlChannel> control, Stream& stream);

}  // namespace hone
