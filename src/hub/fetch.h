// Gets a repository of the hub into the cache, and says where it is: what the cache has is used without asking the hub.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hub/file_choice.h"
#include "hub/hub_settings.h"
#include "hub/repo_cache.h"
#include "hub/repository.h"
#include "hub/transfer.h"

namespace hone {

/// What a download will do.
struct FetchPlan {
  RepoName name;
  std::string commit;
  std::vector<RepoFile> files;         ///< that are wanted
  std::vector<RepoFile> missing = {};  ///< those without a blob
  uint64_t bytes = 0, missing_bytes = 0;
  uint64_t free_bytes = 0;  ///< free on the cache's disk
};

struct FetchOptions {
  /// The files to take. May throw UserError.
  std::function<std::vector<RepoFile>(const RepoListing&)> choose;
  /// Whether a snapshot is enough without asking the hub; `listing` is null if the cache does not have it.
  std::function<bool(const RepoCache& cache, const std::string& commit, const RepoListing* listing)> is_enough;
  bool refresh = false;                             ///< ask the hub for the revision's commit even if the cache has one
  std::function<void(const FetchPlan&)> plan = {};  ///< before bytes are read, with the repository's lock; may throw
  TransferOptions transfer = {};                    ///< its `notice` also for waiting for another process
};

/// The snapshot's folder with the chosen files. One process of a host downloads a repository, others wait for it.
/// Throws UserError: offline and not in the cache, unknown, gated, no space, and errors of the server with the way out.
std::filesystem::path fetch_repository(const HubSettings& settings, const RepoName& name, const FetchOptions& options);

/// The same at a commit for who has the repository's lock: within `plan`.
std::filesystem::path fetch_locked(const HubSettings& settings, RepoName name, const std::string& commit,
                                   const FetchOptions& options);

/// The snapshot in the cache, if there is one that is enough; else "".
std::filesystem::path cached_repository(const std::filesystem::path& cache, const RepoName& name,
                                        const FetchOptions& options);

}  // namespace hone
