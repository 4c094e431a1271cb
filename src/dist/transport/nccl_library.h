// NCCL's functions, loaded at run time when several GPU ranks train together. Compiled only if nccl.h is found.
#pragma once

#if __has_include(<nccl.h>)
#include <nccl.h>
#define HONE_NCCL 1

#include <string>

namespace hone {

/// Pointers to the functions of libnccl.so.2.
struct NcclLibrary {
  std::string path;  ///< where its file is
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
};

/// Loads the library at the first call. Throws UserError if it is not found.
const NcclLibrary& nccl_library();

/// Whether kernels of several communicators begin in the order of their calls, and may run at the same time
/// (dist/transport/communicator.h).
bool orders_communicators(const NcclLibrary& nccl);

}  // namespace hone
#endif
