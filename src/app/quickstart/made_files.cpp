#include "app/quickstart/made_files.h"

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// The first file written to the folder, so that a stopped quickstart is recognised.
constexpr const char* kList = ".hone-quickstart";
constexpr size_t kShownNames = 3;

/// What tells whether a file was changed: its size and checksum, or the target of a link.
std::string contents_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (fs::is_symlink(status)) return "-> " + fs::read_symlink(path, error).string();
  if (!fs::is_regular_file(status)) return "not a file";
  OpenFile file(path);
  std::vector<std::byte> buffer(size_t{1} << 20);
  uint64_t bytes = 0;
  uint32_t sum = 0;
  while (const size_t got = file.read_next(buffer.data(), buffer.size())) {
    sum = extend_crc32c(sum, std::span(buffer).first(got));
    bytes += got;
  }
  return fmt::format("{} {:08x}", bytes, sum);
}

bool is_in(const std::string& path, const std::string& part) {
  return !part.empty() && (path == part || path.starts_with(part + "/"));
}

}  // namespace

MadeFiles::MadeFiles(const fs::path& folder, bool force)
    : folder_(folder.has_filename() ? folder : folder.parent_path()) {
  std::error_code error;
  const bool empty = !is_name_taken(folder_) || (fs::is_directory(folder_, error) && holds_nothing(folder_));
  if (!empty && !fs::exists(folder_ / kList, error)) {
    throw UserError("the output exists and is not a quickstart's", folder_.string(),
                    "name another folder with --output, or remove this one");
  }
  fs::create_directories(folder_, error);
  if (error) throw UserError(fmt::format("the output folder cannot be made: {}", error.message()), folder_.string());
  lock_ = std::make_unique<FolderLock>(folder_);
  remove_leftovers(folder_, true);
  read();
  kept_ = foreign();
  if (!kept_.empty() && !force) {
    std::string names;
    size_t shown = 0;
    for (const std::string& name : kept_) {
      if (shown++ < kShownNames) names += (names.empty() ? "" : ", ") + name;
    }
    if (kept_.size() > kShownNames) names += fmt::format(" and {} more", kept_.size() - kShownNames);
    throw UserError(
        fmt::format("the folder has files that quickstart did not write, or that were changed since: {}", names),
        folder_.string(),
        "name another folder with --output, or move them away; --force writes the files of quickstart again "
        "and leaves all others");
  }
  save();
}

void MadeFiles::make(const std::string& part, const std::function<void()>& write) {
  const fs::path path = folder_ / part;
  if (fs::is_symlink(fs::symlink_status(path))) {
    throw UserError("the quickstart does not write through links", path.string(), "remove the link");
  }
  unfinished_ = part;
  save();
  write();
  std::erase_if(made_,
                [&](const auto& file) { return is_in(file.first, part) && !is_name_taken(folder_ / file.first); });
  for (const std::string& name : files_in(path)) {
    if (!kept_.contains(name) || made_.contains(name)) made_[name] = contents_of(folder_ / name);
  }
  unfinished_.clear();
  save();
}

std::vector<std::string> MadeFiles::files_in(const fs::path& part) const {
  std::vector<std::string> files;
  const auto add = [&](const fs::path& path) { files.push_back(path.lexically_relative(folder_).generic_string()); };
  if (!fs::is_directory(fs::symlink_status(part))) {
    if (is_name_taken(part)) add(part);
    return files;
  }
  for (const auto& entry : fs::recursive_directory_iterator(part)) {
    const std::string name = entry.path().filename().string();
    const bool own = name == kLockName || (name == kList && entry.path().parent_path() == folder_);
    if (!own && !fs::is_directory(entry.symlink_status())) add(entry.path());
  }
  return files;
}

void MadeFiles::read() {
  const auto text = read_whole_file_if_there(folder_ / kList);
  if (!text) return;
  const Json list = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_object() || !list.contains("files") || !list["files"].is_object())
    return;  // nothing is known to be made
  for (const auto& [name, state] : list["files"].items()) {
    if (state.is_string()) made_.emplace(name, state.get<std::string>());
  }
  if (list.contains("unfinished") && list["unfinished"].is_string())
    unfinished_ = list["unfinished"].get<std::string>();
}

void MadeFiles::save() const {
  Json files = Json::object();
  for (const auto& [name, state] : made_) files[name] = state;
  const Json list = {{"about", "what hone quickstart wrote here; the next one replaces these files and no others"},
                     {"unfinished", unfinished_},
                     {"files", std::move(files)}};
  write_durably(folder_ / kList, list.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::set<std::string> MadeFiles::foreign() const {
  std::set<std::string> names;
  for (const std::string& name : files_in(folder_)) {
    const auto made = made_.find(name);
    const bool own = is_in(name, unfinished_) || (made != made_.end() && made->second == contents_of(folder_ / name));
    if (!own) names.insert(name);
  }
  return names;
}

}  // namespace hone
