#include "dist/transport/nccl_library.h"

#ifdef HONE_NCCL
#include <cstdlib>
#include <string_view>

#include "core/cuda/vendor_library.h"

namespace hone {

namespace {

constexpr const char* kLaunchOrder = "NCCL_LAUNCH_ORDER_IMPLICIT";
constexpr VendorLibraryName kNccl = {
    "NCCL, which several GPU ranks need,", "libnccl.so.2", "nvidia/nccl/lib",
    "pip install nvidia-nccl-cu13 in the environment of this program, or install libnccl2 (2.18 or newer)"};
/// The first version that reads it: 2.26.
constexpr int kOrderingVersion = 22600;

NcclLibrary load() {
  // NVLink multicast is off unless the user enables it: if its initialisation fails, NCCL hangs or ends the process.
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  setenv(kLaunchOrder, "1", /*overwrite=*/0);
  const VendorLibrary found(kNccl);
  NcclLibrary library;
  library.path = found.path();
  found.find(library.get_version, "ncclGetVersion");
  found.find(library.get_unique_id, "ncclGetUniqueId");
  found.find(library.init, "ncclCommInitRankConfig");
  found.find(library.async_error, "ncclCommGetAsyncError");
  found.find(library.finalize, "ncclCommFinalize");
  found.find(library.destroy, "ncclCommDestroy");
  found.find(library.abort, "ncclCommAbort");
  found.find(library.error_string, "ncclGetErrorString");
  found.find(library.last_error, "ncclGetLastError");
  found.find(library.group_start, "ncclGroupStart");
  found.find(library.group_end, "ncclGroupEnd");
  found.find(library.all_reduce, "ncclAllReduce");
  found.find(library.reduce_scatter, "ncclReduceScatter");
  found.find(library.reduce, "ncclReduce");
  found.find(library.all_gather, "ncclAllGather");
  found.find(library.broadcast, "ncclBroadcast");
  found.find(library.send, "ncclSend");
  found.find(library.recv, "ncclRecv");
  return library;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

bool orders_communicators(const NcclLibrary& nccl) {
  int version = 0;
  const char* wanted = std::getenv(kLaunchOrder);
  return nccl.get_version(&version) == ncclSuccess && version >= kOrderingVersion && wanted != nullptr &&
         std::string_view(wanted) != "0";
}

}  // namespace hone
#endif
