// How the ranks of a run find each other: rank 0 listens, the others come, both prove that they know the run's secret
// (run_secret.h), and the connections stay as the run's control channel. Strangers are dropped, and delay nobody.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/communicator.h"
#include "dist/control_channel.h"
#include "dist/launch_environment.h"
#include "dist/run_secret.h"

namespace hone {

/// What happens beside the waiting.
struct RendezvousHooks {
  /// Is told, once each: whom this rank still waits for after ControlTimes::notice; at rank 0, that somebody came with
  /// another secret.
  std::function<void(const std::string&)> notice = {};
  /// Throws where the waiting has no sense any more. Asked several times a second.
  std::function<void()> check = {};
};

/// Waits until all ranks are there. Throws UserError: ranks of other sizes or versions of the program, two that are the
/// same rank, a rank that does not have rank 0's secret (within 5 s of finding it); Error(kDeviceFailed): ranks that
/// have not come in `times.rendezvous` (named), rank 0 not found.
std::unique_ptr<ControlChannel> rendezvous(const LaunchEnvironment& environment, const SecretPlaces& secrets,
                                           const ControlTimes& times = {}, const RendezvousHooks& hooks = {});

// From ranks that have found each other to ranks that train together.

/// The communicator of `control`'s ranks, two or more, for tensors on the device of `stream`: NCCL on GPUs; on CPUs
/// MPI, where that has started the ranks and the program has it, otherwise memory that they share or TCP. Throws
/// UserError: the program was built without what is needed.
std::unique_ptr<Communicator> connect_ranks(std::unique_ptr<ControlChannel> control,
                                            const LaunchEnvironment& environment, Stream& stream);

}  // namespace hone
