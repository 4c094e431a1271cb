// Paths to leave out, in the manner of .gitignore.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hone {

/// Patterns of one list; a later one wins over an earlier one. `name` matches at any depth, a pattern with a / before
/// its end only from the root, one that ends in / only folders. * stands for anything but /, ** for any number of
/// folders, ? for one character, [a-z] for one of several; ! in front takes a path back in.
class IgnorePatterns {
 public:
  /// Throws UserError for a pattern that is empty or has an unclosed [.
  explicit IgnorePatterns(const std::vector<std::string>& patterns);

  /// `path` is relative to the root, with / between folders.
  bool ignores(std::string_view path, bool is_folder) const;

 private:
  struct Pattern {
    std::string glob;
    bool negated = false, folders_only = false, anchored = false;
  };
  std::vector<Pattern> patterns_;
};

/// What no repository is trained on: .git and its like, build folders, environments, installed packages, generated
/// code.
const std::vector<std::string>& default_ignore_patterns();

}  // namespace hone
