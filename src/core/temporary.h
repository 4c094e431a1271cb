// Files and folders on their way to their names: NAME.hone-1a2b3c4d.tmp. The name is drawn at random and made
// exclusively, so nothing of anybody is replaced, and what a killed program leaves behind is recognised: by the name,
// and a folder by a marker inside, which its maker holds locked while it lives.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace hone {

/// What becomes of a file or folder with such a name.
struct TemporaryName {
  std::string base;    ///< the name it is on its way to
  std::string ending;  ///< "tmp": being written; others are their makers'
};

/// A new random name beside `path`: PATH.hone-<8 hex digits>.ENDING. Nothing is made.
std::filesystem::path temporary_beside(const std::filesystem::path& path, std::string_view ending = "tmp");
/// Nothing if `name` is not one that temporary_beside makes.
std::optional<TemporaryName> parse_temporary(std::string_view name);

/// A folder that is filled under a temporary name and goes away with this object unless it got its own.
class TemporaryFolder {
 public:
  /// Makes PATH.hone-XXXXXXXX.tmp with the marker inside. UserError if that cannot be made.
  explicit TemporaryFolder(const std::filesystem::path& path);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Renames it to `name`, which is not there or an empty folder, removes the marker and syncs the parent. The contents
  /// are to be synced before (sync_tree). UserError if something stands at `name`.
  void rename_to(const std::filesystem::path& name);

 private:
  std::filesystem::path path_;
  int marker_ = -1;
};

/// The marker's name: what has it inside was made by this program and may be removed when its maker is gone.
inline constexpr const char* kTemporaryMarker = ".hone-temporary";

/// Writes the marker into a folder that is about to get a temporary name.
void mark_temporary(const std::filesystem::path& folder);

/// Removes what killed programs left in `folder`: temporary folders (ending "tmp", the marker inside, its maker gone)
/// and, where `alone` says that nobody else writes there now, temporary files and empty temporary folders. With `base`
/// only those on their way to that name. What cannot be removed stays.
void remove_leftovers(const std::filesystem::path& folder, bool alone, std::string_view base = {});

}  // namespace hone
