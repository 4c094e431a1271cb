#include "dist/nccl_library.h"

#ifdef HONE_NCCL
#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

#include "core/error.h"

namespace hone {

namespace {

constexpr const char* kLaunchOrder = "NCCL_LAUNCH_ORDER_IMPLICIT";
/// The first version that reads it: 2.26.
constexpr int kOrderingVersion = 22600;

NcclLibrary load() {
  // NVLink multicast is off unless the user enables it: if its initialisation fails, NCCL hangs or ends the process.
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  setenv(kLaunchOrder, "1", /*overwrite=*/0);
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* problem = dlerror();
    throw UserError(std::string("several GPU ranks need NCCL, which cannot be loaded: ") + problem, "libnccl.so.2",
                    "install libnccl2, or add the folder that has it to LD_LIBRARY_PATH");
  }
  NcclLibrary library;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    if (!function) {
      throw UserError(std::string("this NCCL does not export ") + name, "libnccl.so.2", "install NCCL 2.18 or newer");
    }
  };
  find(library.get_version, "ncclGetVersion");
  find(library.get_unique_id, "ncclGetUniqueId");
  find(library.init, "ncclCommInitRankConfig");
  find(library.async_error, "ncclCommGetAsyncError");
  find(library.finalize, "ncclCommFinalize");
  find(library.destroy, "ncclCommDestroy");
  find(library.abort, "ncclCommAbort");
  find(library.error_string, "ncclGetErrorString");
  find(library.last_error, "ncclGetLastError");
  find(library.group_start, "ncclGroupStart");
  find(library.group_end, "ncclGroupEnd");
  find(library.all_reduce, "ncclAllReduce");
  find(library.reduce_scatter, "ncclReduceScatter");
  find(library.reduce, "ncclReduce");
  find(library.all_gather, "ncclAllGather");
  find(library.broadcast, "ncclBroadcast");
  find(library.send, "ncclSend");
  find(library.recv, "ncclRecv");
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
