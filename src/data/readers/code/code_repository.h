// A folder of source code as samples: the files to read, and statistics of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"
#include "data/readers/code/code_samples.h"

namespace hone {

// Paths to exclude, in the syntax of .gitignore.

/// A list of patterns; later ones take precedence. `name` matches at any depth, a pattern with a / before its end only
/// from the root, one with a / at its end only folders. * matches anything but /, ** any number of folders, ? one
/// character, [a-z] one of several; a pattern with ! in front includes a path again.
class IgnorePatterns {
 public:
  /// Throws UserError for an empty pattern and for an unclosed [.
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

/// The paths that are excluded by default: .git and similar folders, build folders, environments, installed packages,
/// generated code.
const std::vector<std::string>& default_ignore_patterns();

/// The options of an entry of datasets with type: code.
struct CodeOptions {
  CodeSampleOptions samples = {};
  std::vector<std::string> languages = {};         ///< rust, cpp, python; empty: all
  std::vector<std::string> exclude_patterns = {};  ///< in addition to the default ones; !name removes a default one
  int64_t max_file_bytes = int64_t{1} << 20;       ///< larger files are skipped: they are data, or generated

  /// Parses an entry with the keys of docs/config.md; errors contain `where`.
  static CodeOptions parse(const Json& said, const std::string& where);

  /// Throws UserError for an invalid number (an overlap of max_tokens or more), and for an unknown language or kind.
  void check() const;
};

/// Statistics of a repository: files and samples.
struct CodeStatistics {
  struct Language {
    int64_t files = 0, bytes = 0, samples = 0;
  };
  std::array<Language, 3> languages = {};  ///< by CodeLanguage
  CodeKindCounts kinds = {};
  int64_t other_files = 0, ignored = 0, tests = 0, binary = 0, huge = 0, unreadable = 0;

  /// Text for users: files by language, items found and samples created by kind, and skipped files, each after
  /// `separator`.
  std::string to_text(std::string_view separator) const;
};

/// The source files of a folder, sorted by their paths relative to it. Does not follow symbolic links. Counts skipped
/// files. Throws UserError if `root` is not a folder or contains no file in one of the languages.
std::vector<std::string> code_files(const std::string& root, const CodeOptions& options, CodeStatistics& statistics);

/// Whether the name of a path is that of a test: a folder tests, test, testing or benches, files test_x, x_test,
/// conftest.py.
bool is_test_path(std::string_view path);

/// Reads a repository file by file. Memory: one file and its samples.
class CodeReader {
 public:
  struct Sample {
    std::string text;
    std::string file;
    int64_t line = 1;
    CodeSampleKind kind = CodeSampleKind::kFullFile;
  };

  /// `count`: number of tokens of a text as a sample, including those added around it (bos, eos); for "" only the
  /// latter. max_tokens includes them.
  CodeReader(const std::string& root, CodeOptions options, const TokenCounter& count);

  /// Reads the next sample; returns false at the end.
  bool next(Sample& sample);

  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes_total() const { return bytes_total_; }
  const CodeStatistics& statistics() const { return statistics_; }

 private:
  void read_file(const std::string& path);

  std::string root_;
  CodeOptions options_;
  TokenCounter count_;
  CodeStatistics statistics_;
  std::vector<std::string> files_;
  size_t next_file_ = 0;
  std::vector<Sample> samples_;  // those of the last file read, in reverse
  int64_t bytes_read_ = 0, bytes_total_ = 0;
};

}  // namespace hone
