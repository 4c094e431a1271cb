#include "hub/repo_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostListing = uint64_t{256} << 20;

[[noreturn]] void fail(const fs::path& path, const std::string& reason) {
  throw UserError("the cache of the hub cannot be written: " + reason, path.string(),
                  "set HF_HUB_CACHE to a folder that can be, with enough space");
}

std::string error_text() { return std::generic_category().message(errno); }

void create_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(path, error.message());
}

bool links_are_unwanted() {
  const char* value = std::getenv("HF_HUB_DISABLE_SYMLINKS");
  const std::string text = value == nullptr ? "" : in_lower_case(value);
  return text == "1" || text == "true" || text == "yes" || text == "on";
}

}  // namespace

RepoCache::RepoCache(fs::path root, const Repo& repo) : root_(std::move(root)) {
  std::string name = fmt::format("{}s--{}", name_of(repo.type), repo.id);
  if (const size_t slash = name.find('/'); slash != std::string::npos) name.replace(slash, 1, "--");
  folder_ = root_ / name;
  locks_ = root_ / ".locks" / name;
}

std::string RepoCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  if (!is_revision(revision)) return "";
  std::error_code error;
  if (!fs::is_regular_file(folder_ / "refs" / revision, error)) return "";
  std::string text = read_whole_file_if_there(folder_ / "refs" / revision, 4096).value_or("");
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return is_commit(text) ? text : "";  // anything else would be a path
}

std::optional<RepoListing> RepoCache::listing(const std::string& commit) const {
  const std::optional<std::string> text =
      read_whole_file_if_there(folder_ / "trees" / (commit + ".json"), kMostListing);
  return text ? parse_listing(*text, commit) : std::nullopt;
}

bool RepoCache::has(const std::string& commit, const std::string& path) const {
  std::error_code error;
  return fs::is_regular_file(snapshot(commit) / path, error);
}

void RepoCache::create() const {
  for (const fs::path& path : {folder_ / "blobs", folder_ / "refs", folder_ / "snapshots", locks_})
    create_folders(path);
  for (const char* folder : {"refs", "trees"}) remove_leftovers(folder_ / folder, true);
  const fs::path tag = root_ / "CACHEDIR.TAG";
  if (is_name_taken(tag)) return;
  constexpr std::string_view kText = "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of the hub's programs\n";
  const Descriptor file(create_new_file(tag));
  if (file.open() && ::write(file.descriptor(), kText.data(), kText.size()) < 0) fail(tag, error_text());
}

void RepoCache::write_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit || commit_of(revision) == commit) return;
  const fs::path path = folder_ / "refs" / revision;
  create_folders(path.parent_path());
  write_durably(path, commit);
}

void RepoCache::write_listing(const RepoListing& listing) const {
  const fs::path path = folder_ / "trees" / (listing.commit + ".json");
  create_folders(path.parent_path());
  write_durably(path, listing_text(listing));
}

void RepoCache::place_link(const std::string& commit, const RepoFile& file) const {
  const fs::path path = snapshot(commit) / file.path, target = blob(file.etag());
  create_folders(path.parent_path());
  const fs::path relative = fs::path(target).lexically_relative(path.parent_path());
  std::error_code error;
  if (fs::is_symlink(path, error) && fs::read_symlink(path, error) == relative) return;
  if (fs::is_directory(path, error)) fail(path, "it is a folder");
  fs::remove(path, error);  // a link to another blob, or one that leads nowhere
  if (!links_are_unwanted()) {
    fs::create_symlink(relative, path, error);
    if (!error) return;
  }
  copy_durably(target, path);
}

void RepoCache::note_absent(const std::string& commit, const std::string& path) const {
  const fs::path file = folder_ / ".no_exist" / commit / path;
  if (is_name_taken(file)) return;
  create_folders(file.parent_path());
  const Descriptor created(create_new_file(file));
}

bool CacheLock::take(const fs::path& path, bool wait) {
  create_folders(path.parent_path());
  while (true) {
    // Writable for the group, as the hub's programs have it for caches that several users share.
    file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664));
    if (!file_.open()) fail(path, error_text());
    while (::flock(file_.descriptor(), LOCK_EX | (wait ? 0 : LOCK_NB)) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return false;
      return true;  // no locks here
    }
    struct stat mine {
    }, there{};
    const bool same = ::fstat(file_.descriptor(), &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
                      mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
    if (same) return true;  // else another program has removed the file between
  }
}

}  // namespace hone
