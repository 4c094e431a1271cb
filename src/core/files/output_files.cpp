#include "core/files/output_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/files/descriptor.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/files/folder_lock.h"
#include "core/files/standard_output.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr size_t kBeginning = size_t{64} << 10;
constexpr const char* kSetName = "output";

[[noreturn]] void cannot_write(const fs::path& path, const std::string& reason) {
  throw UserError("the file cannot be written: " + reason, path.string(),
                  "check the folder's permissions and the free space");
}

std::string beginning_of(const fs::path& path) {
  OpenFile file(path);
  std::string text(kBeginning, '\0');
  text.resize(file.read_next(text.data(), text.size()));
  return text;
}

bool is_earlier_result(const fs::path& path, const OutputRule& rule) {
  std::error_code error;
  if (!rule.is_earlier || fs::symlink_status(path, error).type() != fs::file_type::regular) return false;
  return rule.is_earlier(beginning_of(path));
}

void make_parent(const fs::path& path) {
  if (!path.has_parent_path()) return;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) cannot_write(path, error.message());
}

/// Renames without a check by the rule. Returns whether a file was replaced.
bool move_file(const fs::path& from, const fs::path& to, const OutputRule& rule) {
  if (!is_name_taken(to)) {
    if (rename_to_free(from, to)) return false;
    if (errno != EEXIST) cannot_write(to, std::strerror(errno));
    require_output(to, rule);  // somebody else has written it meanwhile
  }
  std::error_code error;
  fs::rename(from, to, error);
  if (error) cannot_write(to, error.message());
  return true;
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != kTemporaryMarker) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Calls `fill` and syncs. An error at a file of the temporary folder names its final path instead.
void fill_set(const TemporaryFolder& temporary, const fs::path& folder,
              const std::function<void(const fs::path& temporary)>& fill) {
  try {
    fill(temporary.path());
    sync_tree(temporary.path());
  } catch (const UserError& error) {
    const std::string staged = temporary.path().string();
    if (!error.where().starts_with(staged)) throw;
    throw UserError(error.message(), folder.string() + error.where().substr(staged.size()), error.fix());
  }
}

void move_set(const TemporaryFolder& temporary, const fs::path& folder, const OutputRule& rule) {
  const std::vector<std::string> names = files_in(temporary.path());
  for (const std::string& name : names) require_output(folder / name, rule);
  std::vector<fs::path> created;
  try {
    for (const std::string& name : names) {
      if (!move_file(temporary.path() / name, folder / name, rule)) created.push_back(folder / name);
    }
  } catch (...) {
    for (const fs::path& path : created) unlink(path.c_str());
    throw;
  }
  sync_directory(folder);
}

}  // namespace

void require_output(const fs::path& path, const OutputRule& rule) {
  if (path.empty()) throw UserError("the output is not named", "", "name a file");
  std::error_code error;
  if (fs::is_directory(path, error) || !path.has_filename()) {
    throw UserError("the output is a folder, not a file", path.string(), "name a file in it");
  }
  rule.inputs.refuse(path);
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) {
    if (error && status.type() != fs::file_type::not_found) cannot_write(path, error.message());
    return;
  }
  const auto type = fs::is_symlink(status) ? fs::status(path, error).type() : status.type();
  if (type != fs::file_type::regular && type != fs::file_type::not_found) {
    throw UserError("the output is a device or a pipe, which would be replaced by a file", path.string(),
                    "name a file; where a verb can write to standard output, its help says so");
  }
  if (rule.replace || is_earlier_result(path, rule)) return;
  throw UserError(
      fs::is_symlink(status) ? "the output is a link, which is not followed" : "the output file exists already",
      path.string(), "choose another one, or replace it with --force");
}

void write_output(const fs::path& path, std::string_view text, const OutputRule& rule) {
  require_output(path, rule);
  make_parent(path);
  NewFile file(path);
  file.write(text);
  place_output(file.complete(), path, rule);
}

void append_output(const fs::path& path, std::string_view record, const OutputRule& rule) {
  OutputRule appending = rule;
  appending.replace = false;
  appending.is_earlier = [&](std::string_view beginning) { return beginning.empty() || rule.is_earlier(beginning); };
  require_output(path, appending);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644));
  struct stat status {};
  if (!file.open() || ::fstat(file.descriptor(), &status) != 0) cannot_write(path, std::strerror(errno));
  char last = '\n';
  if (status.st_size > 0) [[maybe_unused]]
    const ssize_t got = ::pread(file.descriptor(), &last, 1, status.st_size - 1);
  std::string text(record);
  if (last != '\n') text.insert(text.begin(), '\n');
  ::lseek(file.descriptor(), 0, SEEK_END);
  int error = write_to_descriptor(file.descriptor(), text);
  if (error == 0 && !sync_file(file.descriptor())) error = errno;
  if (error == 0) return;
  [[maybe_unused]] const int cut = ::ftruncate(file.descriptor(), status.st_size);
  cannot_write(path, std::strerror(error));
}

void place_output(const fs::path& temporary, const fs::path& path, const OutputRule& rule) {
  try {
    require_output(path, rule);
    move_file(temporary, path, rule);
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
  sync_directory(path.has_parent_path() ? path.parent_path() : ".");
}

void remove_output(const fs::path& path, const OutputRule& rule) {
  if (!is_name_taken(path)) return;
  require_output(path, rule);
  if (unlink(path.c_str()) != 0) cannot_write(path, std::strerror(errno));
}

void write_output_set(const fs::path& given, const OutputRule& rule,
                      const std::function<void(const fs::path& temporary)>& fill) {
  const fs::path folder = given.has_filename() ? given : given.parent_path();
  rule.inputs.refuse_inside(folder);
  std::error_code error;
  if (!is_name_taken(folder)) {
    make_parent(folder);
    remove_leftovers(folder.has_parent_path() ? folder.parent_path() : ".", false, folder.filename().string());
    TemporaryFolder temporary(folder);
    fill_set(temporary, folder, fill);
    temporary.rename_to(folder);
    return;
  }
  if (!fs::is_directory(folder, error)) {
    throw UserError("the output is not a folder", folder.string(), "choose another one");
  }
  const FolderLock lock(folder);
  remove_leftovers(folder, true, kSetName);
  const TemporaryFolder temporary(folder / kSetName);
  fill_set(temporary, folder, fill);
  move_set(temporary, folder, rule);
}

}  // namespace hone
