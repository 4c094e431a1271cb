// A folder of source code as samples: which files are read, and what became of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_fwd.h"
#include "data/code/code_samples.h"

namespace hone {

// Paths to leave out, in the manner of .gitignore.

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

/// What an entry of datasets with type: code says.
struct CodeOptions {
  CodeSampleOptions samples = {};
  std::vector<std::string> languages = {};         ///< rust, cpp, python; empty: all
  std::vector<std::string> exclude_patterns = {};  ///< beside the default ones; !name takes one of those back
  int64_t max_file_bytes = int64_t{1} << 20;       ///< larger files are skipped: they are data, or generated

  /// Reads what an entry says under the names of docs/config.md; `where` is named in errors.
  static CodeOptions parse(const Json& said, const std::string& where);

  /// Throws UserError for a number that makes no sense (an overlap of max_tokens and more), an unknown language or
  /// kind.
  void check() const;
};

/// What was found in a repository and made of it.
struct CodeStatistics {
  struct Language {
    int64_t files = 0, bytes = 0, samples = 0;
  };
  std::array<Language, 3> languages = {};  ///< by CodeLanguage
  CodeKindCounts kinds = {};
  int64_t other_files = 0, ignored = 0, tests = 0, binary = 0, huge = 0, unreadable = 0;

  /// For a person: files by language, found and created by kind, what was skipped, each behind `separator`.
  std::string to_text(std::string_view separator) const;
};

/// The source files of a folder, in the order of their paths, relative to it. Symbolic links are not followed. Counts
/// what is passed over. Throws UserError if `root` is no folder or no file in it is in one of the languages.
std::vector<std::string> code_files(const std::string& root, const CodeOptions& options, CodeStatistics& statistics);

/// Whether a path is one of tests by its name: a folder tests, test, testing or benches, files test_x, x_test,
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

  /// `count`: the tokens of a text as a sample, with those that are put around it (bos, eos); of "" those alone. They
  /// are among max_tokens.
  CodeReader(const std::string& root, CodeOptions options, const TokenCounter& count);

  /// The next sample, or false at the end.
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
  std::vector<Sample> samples_;  // of the file read last, in reverse
  int64_t bytes_read_ = 0, bytes_total_ = 0;
};

}  // namespace hone
