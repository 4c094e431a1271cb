// NcclCommunicator: collectives of GPU ranks through NCCL, on a stream of their own.
#pragma once

#include <memory>
#include <string>

#include "dist/transport/communicator.h"

namespace hone {

/// Loads NCCL (libnccl.so.2) and connects the ranks of `control`; each must have its own GPU. `stream` is this rank's
/// compute stream. Throws UserError if the program or the machine lacks NCCL; Error(kDeviceFailed) if the ranks cannot
/// connect.
std::unique_ptr<Communicator> connect_nccl(std::unique_ptr<Control> control, Stream& stream);

/// "2.28.9": the NCCL of this machine; "none: …" with the reason if the program or the machine lacks it.
std::string nccl_version();

}  // namespace hone
