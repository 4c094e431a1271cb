// MadeFiles: the list of what `hone quickstart` has written to its folder. A second quickstart writes these files
// again, and no others: a folder in which something was added or changed since is refused.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/files/folder_lock.h"

namespace hone {

class MadeFiles {
 public:
  /// Creates the folder and takes its lock. Throws UserError if another quickstart runs there, if the folder is not a
  /// quickstart's, or if it has files that quickstart did not write, or that were changed since. With `force` the
  /// latter is accepted: changed files are written again, and others stay.
  MadeFiles(const std::filesystem::path& folder, bool force);

  /// Runs `write`, which writes the file or folder `part` and nothing else, and adds its files to the list. What a
  /// killed or failed `write` leaves in that part counts as written, too. UserError if the part is a link.
  void make(const std::string& part, const std::function<void()>& write);

 private:
  std::vector<std::string> files_in(const std::filesystem::path& part) const;
  void read();
  void save() const;
  std::set<std::string> foreign() const;

  const std::filesystem::path folder_;
  std::unique_ptr<FolderLock> lock_;
  std::map<std::string, std::string> made_;  // path in the folder → its state when it was written
  std::string unfinished_;                   // the part that is being written; "": none
  std::set<std::string> kept_;               // files of the user, which are not added to the list
};

}  // namespace hone
