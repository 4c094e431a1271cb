#include "hub/fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "core/base/error.h"
#include "hub/http.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSlack = uint64_t{64} << 20;  // bytes that are left free

/// The space of the disk that will have `path`.
uint64_t free_space(fs::path path) {
  std::error_code error;
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  const fs::space_info space = fs::space(path.empty() ? "." : path, error);
  return error ? UINT64_MAX : space.available;
}

double gigabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e9; }

FetchPlan plan_of(const HubSettings& settings, const RepoCache& cache, const RepoName& name, const RepoListing& listing,
                  const FetchOptions& options) {
  FetchPlan plan{.name = name, .commit = listing.commit, .files = options.choose(listing)};
  std::set<std::string> etags;
  for (const RepoFile& file : plan.files) {
    plan.bytes += file.size;
    std::error_code error;
    const fs::path blob = cache.blob(file.etag());
    const bool there = cache.has(listing.commit, file.path)
                           ? fs::file_size(cache.snapshot(listing.commit) / file.path, error) == file.size
                           : fs::is_regular_file(blob, error) && fs::file_size(blob, error) == file.size;
    if (there || !etags.insert(file.etag()).second) continue;
    plan.missing.push_back(file);
    plan.missing_bytes += file.size;
  }
  plan.free_bytes = free_space(settings.cache);
  return plan;
}

void require_space(const HubSettings& settings, const FetchPlan& plan) {
  if (plan.missing.empty() || plan.free_bytes >= plan.missing_bytes + kSlack) return;
  throw UserError(fmt::format("{} needs {:.1f} GB of disk, and {:.1f} GB are free", plan.name.text(),
                              gigabytes(plan.missing_bytes), gigabytes(plan.free_bytes)),
                  settings.cache.string(), "make space, or set HF_HUB_CACHE to a folder of another disk");
}

fs::path get(const HubSettings& settings, const RepoName& name, const RepoCache& cache, const FetchOptions& options) {
  HubHttp http(settings);
  const std::string commit = is_commit(name.revision) ? name.revision : commit_of_revision(http, settings, name);
  std::optional<RepoListing> listing = cache.listing(commit);
  const bool known = listing.has_value();
  if (!known) listing = list_repository(http, settings, name, commit);
  const FetchPlan plan = plan_of(settings, cache, name, *listing, options);
  if (options.plan) options.plan(plan);
  require_space(settings, plan);
  cache.create();
  if (!known) cache.write_listing(*listing);
  try {
    transfer_files(settings, cache, name.repo, commit, plan.missing, options.transfer);
  } catch (const HubError& error) {
    explain(http, settings, name, error);
  }
  for (const RepoFile& file : plan.files) {
    std::error_code error;
    if (fs::is_regular_file(cache.blob(file.etag()), error)) cache.place_link(commit, file);
  }
  for (const std::string& path : optional_files()) {
    if (name.repo.type == RepoType::kModel && listing->find(path) == nullptr) cache.note_absent(commit, path);
  }
  cache.write_ref(name.revision, commit);
  return cache.snapshot(commit);
}

}  // namespace

fs::path fetch_locked(const HubSettings& settings, RepoName name, const std::string& commit,
                      const FetchOptions& options) {
  name.revision = commit;
  return get(settings, name, RepoCache(settings.cache, name.repo), options);
}

fs::path cached_repository(const fs::path& root, const RepoName& name, const FetchOptions& options) {
  const RepoCache cache(root, name.repo);
  const std::string commit = cache.commit_of(name.revision);
  std::error_code error;
  if (commit.empty() || !fs::is_directory(cache.snapshot(commit), error)) return {};
  const std::optional<RepoListing> listing = cache.listing(commit);
  return options.is_enough(cache, commit, listing ? &*listing : nullptr) ? cache.snapshot(commit) : fs::path();
}

fs::path fetch_repository(const HubSettings& settings, const RepoName& name, const FetchOptions& options) {
  if (!options.refresh) {
    if (fs::path cached = cached_repository(settings.cache, name, options); !cached.empty()) return cached;
  }
  const RepoCache cache(settings.cache, name.repo);
  if (settings.offline) {
    const bool some = fs::exists(cache.snapshot(cache.commit_of(name.revision)));
    throw UserError(fmt::format("the {} '{}' is {} in the cache, and HF_HUB_OFFLINE forbids to download it",
                                name_of(name.repo.type), name.text(),
                                some && !cache.commit_of(name.revision).empty() ? "not complete" : "not"),
                    settings.cache.string(),
                    fmt::format("unset HF_HUB_OFFLINE, or run on a machine with the same cache: hone download {}{}",
                                name.repo.type == RepoType::kDataset ? "--repo-type dataset " : "", name.text()));
  }
  bool waited = false;
  const CacheLock lock(cache.lock_file("hone"), [&] {
    waited = true;
    if (options.transfer.notice) {
      options.transfer.notice(fmt::format("another process downloads {}: waiting for it", name.text()));
    }
  });
  if (waited) {  // what it brought is as new as what the hub has
    if (fs::path cached = cached_repository(settings.cache, name, options); !cached.empty()) return cached;
  }
  return get(settings, name, cache, options);
}

}  // namespace hone
