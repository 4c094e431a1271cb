// Brings files of a repository into the blobs of the cache: several connections share the files and their pieces, what
// a killed program has left is continued, and no blob gets its name before its hash is that of the hub.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hub/hub_settings.h"
#include "hub/repo_cache.h"
#include "hub/repository.h"

namespace hone {

/// What arrives, for a progress line; bytes of all files.
struct TransferProgress {
  uint64_t done = 0, total = 0;
  uint64_t received = 0;  ///< bytes of `done` that this call received
  size_t files_done = 0, files = 0;
};

struct TransferOptions {
  int connections = 8;
  int tries = 8;  ///< attempts at a piece without any new byte between them
  /// Called about five times a second, on the calling thread; may throw, which ends the transfer.
  std::function<void(const TransferProgress&)> progress = {};
  std::function<void(const std::string&)> notice =
      {};  ///< a line for the user: a retry that takes long; calling thread
};

/// Brings those of `files` (with different etags) that have no blob yet; on return all have. Throws HubError if the
/// server fails, and UserError if the disk does or if a file's hash is wrong twice. Pieces that arrived are kept.
void transfer_files(const HubSettings& settings, const RepoCache& cache, const Repo& repo, const std::string& commit,
                    const std::vector<RepoFile>& files, const TransferOptions& options);

}  // namespace hone
