// The cache of the hub's programs (huggingface_hub): one folder for each repository, with bytes in blobs/ by their
// hash, links to them in snapshots/COMMIT/, commits of branches and tags in refs/, lists of files in trees/, names that
// a commit does not have in .no_exist/, and locks beside the repositories.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/files/descriptor.h"
#include "hub/repository.h"

namespace hone {

class RepoCache {
 public:
  /// `root`: the folder of all repositories. Creates nothing.
  RepoCache(std::filesystem::path root, const Repo& repo);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path blob(const std::string& etag) const { return folder_ / "blobs" / etag; }
  std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }
  std::filesystem::path lock_file(const std::string& name) const { return locks_ / (name + ".lock"); }

  /// The commit of a revision: itself, or what refs/ has for it, if that is a commit; else "".
  std::string commit_of(const std::string& revision) const;
  /// The files that a commit has, if the cache knows.
  std::optional<RepoListing> listing(const std::string& commit) const;
  /// Whether the snapshot has the file, through its link.
  bool has(const std::string& commit, const std::string& path) const;

  // Writing; throws UserError if the folder cannot be written.

  /// Creates the folders, marks the cache as one that backups leave out, and removes what a killed program left here.
  /// With the lock of the repository.
  void create() const;
  void write_ref(const std::string& revision, const std::string& commit) const;
  void write_listing(const RepoListing& listing) const;
  /// Makes the snapshot's file a link to its blob, which exists; a copy where the file system has no links.
  void place_link(const std::string& commit, const RepoFile& file) const;
  /// Notes that the commit has no such file.
  void note_absent(const std::string& commit, const std::string& path) const;

 private:
  std::filesystem::path root_, folder_, locks_;
};

/// A lock among processes on one host: flock() on a file of the cache, as the hub's programs take it. Without effect on
/// file systems without locks; then, and between hosts, files that are being written have names of their own.
class CacheLock {
 public:
  /// Waits for the lock; calls `waits` once if another process has it. UserError if the file cannot be created.
  template <class Waits>
  CacheLock(const std::filesystem::path& path, Waits waits) {
    if (take(path, false)) return;
    waits();
    take(path, true);
  }

 private:
  bool take(const std::filesystem::path& path, bool wait);

  Descriptor file_;
};

}  // namespace hone
