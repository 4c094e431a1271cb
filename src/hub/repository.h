// Repositories of the hub: their names, and what its API says of their files. All of it comes from users and servers,
// and is checked here: later code makes paths of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/hub_settings.h"

namespace hone {

class HubError;
class HubHttp;

enum class RepoType { kModel, kDataset };

/// "model" or "dataset".
const char* name_of(RepoType type);

struct Repo {
  RepoType type = RepoType::kModel;
  std::string id;  ///< ORG/NAME, or NAME of the oldest ones

  bool operator==(const Repo&) const = default;
};

/// A name as users write it: ID or ID@REVISION.
struct RepoName {
  Repo repo;
  std::string revision = "main";  ///< a branch, a tag, or a commit
  bool stated = false;            ///< a revision was stated

  /// ID, or ID@REVISION if one was stated.
  std::string text() const { return stated ? repo.id + "@" + revision : repo.id; }
};

/// Nothing if `text` cannot be the name of a repository: a path, or with other characters. With `bare` also a NAME
/// without an ORG is one.
std::optional<RepoName> parse_repo_name(RepoType type, std::string_view text, bool bare = false);

/// `name` at the revision that `key` states beside it; "": as it is. UserError at `place` for a text that is not a
/// revision, and for another one than the name's.
RepoName at_revision(RepoName name, const std::string& revision, const std::string& key, const std::string& place);

/// Whether a text is a commit: 40 hexadecimal digits, in lower case.
bool is_commit(std::string_view text);
/// Whether a text can be a branch or a tag: parts between '/' that are no way out of a folder.
bool is_revision(std::string_view text);
/// Whether a server's file name stays inside a folder, and is one that a screen can show.
bool is_safe_file_name(std::string_view path);

/// A file of a repository at a commit.
struct RepoFile {
  std::string path;         ///< is_safe_file_name
  uint64_t size = 0;        ///< bytes
  std::string blob;         ///< its git hash (SHA-1 of "blob SIZE\0" and the bytes), which a large file's pointer has
  std::string sha256 = "";  ///< the hash of the bytes of a large file (Git LFS); "": not one
  std::string xet = "";     ///< how Xet storage names it; only kept for the cache

  /// The name of its bytes in the cache, which is the ETag that the hub sends.
  const std::string& etag() const { return sha256.empty() ? blob : sha256; }
};

struct RepoListing {
  std::string commit;
  std::vector<RepoFile> files;  ///< by path

  const RepoFile* find(std::string_view path) const;
};

/// The commit of a revision. Throws UserError for what the hub answers instead: unknown (with near names), gated,
/// private, not reached.
std::string commit_of_revision(HubHttp& http, const HubSettings& settings, const RepoName& name);

/// The files at a commit, from all pages. Throws UserError as above, and for names, hashes and sizes that are none.
RepoListing list_repository(HubHttp& http, const HubSettings& settings, const RepoName& name,
                            const std::string& commit);

/// The address of a file's bytes.
Url file_address(const HubSettings& settings, const Repo& repo, const std::string& commit, const std::string& path);

/// A listing as the cache keeps it (trees/COMMIT.json), and back; nothing if the text is of another form or damaged.
std::string listing_text(const RepoListing& listing);
std::optional<RepoListing> parse_listing(std::string_view text, const std::string& commit);

/// The error for a call that failed: what became of it, where, and what to do. `http` is asked for near names.
[[noreturn]] void explain(HubHttp& http, const HubSettings& settings, const RepoName& name, const HubError& error);

}  // namespace hone
