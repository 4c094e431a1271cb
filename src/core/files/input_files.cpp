#include "core/files/input_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

std::optional<std::pair<uint64_t, uint64_t>> identity_of(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || S_ISDIR(status.st_mode)) return std::nullopt;
  return std::pair<uint64_t, uint64_t>(status.st_dev, status.st_ino);
}

/// The path without links, as far as it exists; "" if its links loop.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  fs::path real = fs::weakly_canonical(absolute, error);
  if (error) return {};
  return real.has_filename() ? real : real.parent_path();
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  const auto [in_folder, in_path] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return in_folder == folder.end();
}

/// The maximum number of files per folder, in case the data path is a whole disk.
constexpr size_t kMostFiles = 100'000;

}  // namespace

void InputFiles::add(const fs::path& path, const std::string& what) {
  std::error_code error;
  if (path.empty() || !fs::exists(path, error)) return;
  const size_t index = inputs_.size();
  inputs_.push_back({path, real_path(path), what, fs::is_directory(path, error)});
  const auto note = [&](const fs::path& file) {
    if (const auto identity = identity_of(file)) files_.emplace(*identity, index);
  };
  note(path);
  if (!inputs_.back().folder) return;
  size_t files = 0;
  const auto skip = fs::directory_options::skip_permission_denied;
  for (auto entry = fs::recursive_directory_iterator(path, skip, error);
       entry != fs::recursive_directory_iterator() && files < kMostFiles; entry.increment(error), ++files) {
    note(entry->path());
  }
}

void InputFiles::overlap(const fs::path& output, const Input& input) {
  throw UserError(fmt::format("{} would be written over: it is read from {}", input.what, input.path.string()),
                  output.string(), "choose another output folder; inputs are never overwritten or removed");
}

void InputFiles::refuse(const fs::path& output) const {
  if (const auto identity = identity_of(output)) {
    if (const auto found = files_.find(*identity); found != files_.end()) overlap(output, inputs_[found->second]);
  }
  const fs::path real = real_path(output);
  if (real.empty()) return;
  for (const Input& input : inputs_) {
    if (lies_in(input.real, real)) overlap(output, input);
  }
  refuse_inside(output);
}

void InputFiles::refuse_inside(const fs::path& output) const {
  const fs::path real = real_path(output);
  for (const Input& input : inputs_) {
    if (input.folder && lies_in(real, input.real)) overlap(output, input);
  }
}

}  // namespace hone
