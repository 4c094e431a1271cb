#include "data/code/ignore_patterns.h"

#include <fmt/format.h>

#include "core/error.h"

namespace hone {
namespace {

/// Matches one bracket expression at glob[0] == '['; sets `length` to its bytes. [!a] and [^a] are the others.
bool in_brackets(std::string_view glob, char c, size_t& length) {
  size_t i = 1;
  const bool negated = i < glob.size() && (glob[i] == '!' || glob[i] == '^');
  if (negated) ++i;
  bool found = false;
  for (bool first = true; i < glob.size() && (first || glob[i] != ']'); first = false) {
    const bool range = i + 2 < glob.size() && glob[i + 1] == '-' && glob[i + 2] != ']';
    found |= range ? glob[i] <= c && c <= glob[i + 2] : glob[i] == c;
    i += range ? 3 : 1;
  }
  length = i + 1;
  return found != negated;
}

/// A glob with ** over folders on one path. What has failed once is not tried again, so that the time grows with the
/// product of their lengths however many stars there are.
class GlobMatch {
 public:
  GlobMatch(std::string_view glob, std::string_view path)
      : failed_((glob.size() + 1) * (path.size() + 1)), paths_(path.size() + 1) {}

  bool matches(std::string_view glob, std::string_view path) {
    const size_t state = glob.size() * paths_ + path.size();
    if (failed_[state]) return false;
    const bool found = tried(glob, path);
    failed_[state] = !found;
    return found;
  }

 private:
  bool tried(std::string_view glob, std::string_view path) {
    if (glob.empty()) return path.empty();
    if (glob.starts_with("**/")) {
      if (matches(glob.substr(3), path)) return true;
      const size_t slash = path.find('/');
      return slash != std::string_view::npos && matches(glob, path.substr(slash + 1));
    }
    if (glob == "**") return true;
    if (glob[0] == '*') {
      while (!glob.empty() && glob[0] == '*') glob.remove_prefix(1);
      for (size_t i = 0;; ++i) {
        if (matches(glob, path.substr(i))) return true;
        if (i == path.size() || path[i] == '/') return false;
      }
    }
    if (path.empty()) return false;
    if (glob[0] == '?') return path[0] != '/' && matches(glob.substr(1), path.substr(1));
    if (glob[0] == '[') {
      size_t length = 0;
      return path[0] != '/' && in_brackets(glob, path[0], length) && matches(glob.substr(length), path.substr(1));
    }
    const bool escaped = glob[0] == '\\' && glob.size() > 1;
    if (glob[escaped ? 1 : 0] != path[0]) return false;
    return matches(glob.substr(escaped ? 2 : 1), path.substr(1));
  }

  std::vector<bool> failed_;  // by what is left of glob and path
  size_t paths_;
};

}  // namespace

IgnorePatterns::IgnorePatterns(const std::vector<std::string>& patterns) {
  constexpr size_t kLongest = 256;
  for (const std::string& written : patterns) {
    Pattern pattern;
    std::string_view glob = written;
    if (glob.starts_with('!')) {
      pattern.negated = true;
      glob.remove_prefix(1);
    }
    if (glob.ends_with('/')) {
      pattern.folders_only = true;
      glob.remove_suffix(1);
    }
    pattern.anchored = glob.find('/') != std::string_view::npos;
    if (glob.starts_with('/')) glob.remove_prefix(1);
    size_t stars = 0;
    for (const char c : glob) stars += c == '*' ? 1 : 0;
    const size_t open = glob.rfind('[');
    const bool unclosed = open != std::string_view::npos && glob.find(']', open + 1) == std::string_view::npos;
    if (glob.empty() || unclosed || glob.size() > kLongest || stars > 8) {
      throw UserError(fmt::format("'{}' is not a pattern", written), "exclude_patterns",
                      "write names and globs as in .gitignore: target/, *.pb.h, docs/**/generated");
    }
    pattern.glob = glob;
    patterns_.push_back(std::move(pattern));
  }
}

bool IgnorePatterns::ignores(std::string_view path, bool is_folder) const {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  bool ignored = false;
  for (const Pattern& pattern : patterns_) {
    if (pattern.folders_only && !is_folder) continue;
    const std::string_view subject = pattern.anchored ? path : name;
    if (GlobMatch(pattern.glob, subject).matches(pattern.glob, subject)) ignored = !pattern.negated;
  }
  return ignored;
}

const std::vector<std::string>& default_ignore_patterns() {
  static const std::vector<std::string> patterns = {
      ".*/",           "target/", "build/",       "build-*/",     "cmake-build-*/", "out/",    "dist/",
      "node_modules/", "vendor/", "third_party/", "__pycache__/", "venv/",          "env/",    "site-packages/",
      "*.egg-info/",   "*.pb.h",  "*.pb.cc",      "*_pb2.py",     "*_pb2_grpc.py",  "*.min.*",
  };
  return patterns;
}

}  // namespace hone
