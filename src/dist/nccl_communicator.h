// NcclCommunicator: collectives of GPU ranks through NCCL, on a stream of their own beside the compute stream.
#pragma once

#include <memory>

#include "dist/communicator.h"

namespace hone {

/// Loads NCCL (libnccl.so.2) and connects the ranks of `control`, of which each has another GPU; `stream` is this
/// rank's compute stream. Throws UserError: a program or machine without NCCL; Error(kDeviceFailed): the ranks do not
/// connect.
std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Control> control, Stream& stream);

}  // namespace hone
