#include "data/readers/code/code_repository.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/base/error.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "text/utf8.h"

namespace hone {
namespace {

/// Matches one bracket expression at glob[0] == '['; sets `length` to its bytes. [!a] and [^a] are negated.
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

/// Matches a glob with ** for folders against one path. Memoizes failed states, so the time is bounded by the product
/// of the lengths, whatever the number of stars.
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

  std::vector<bool> failed_;  // by the rest of glob and path
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

namespace {

namespace fs = std::filesystem;

constexpr int kMaxFolders = 64;  // maximum depth of folders

/// Walks the files of a folder and its subfolders, in the order of their paths.
class RepositoryWalk {
 public:
  RepositoryWalk(const fs::path& root, const CodeOptions& options, CodeStatistics& statistics)
      : root_(root), options_(options), statistics_(statistics), ignore_(patterns_of(options)) {}

  std::vector<std::string> run() {
    folder("", 0);
    return std::move(files_);
  }

 private:
  static std::vector<std::string> patterns_of(const CodeOptions& options) {
    std::vector<std::string> all = default_ignore_patterns();
    all.insert(all.end(), options.exclude_patterns.begin(), options.exclude_patterns.end());
    return all;
  }

  void folder(const std::string& relative, int depth) {
    std::vector<std::pair<std::string, bool>> entries;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(root_ / relative, error)) {
      const fs::file_status status = entry.symlink_status(error);
      if (fs::is_directory(status)) entries.emplace_back(entry.path().filename().string(), true);
      if (fs::is_regular_file(status)) entries.emplace_back(entry.path().filename().string(), false);
    }
    if (error) ++statistics_.unreadable;
    std::sort(entries.begin(), entries.end());
    for (const auto& [name, is_folder] : entries) {
      const std::string path = relative.empty() ? name : relative + "/" + name;
      if (ignore_.ignores(path, is_folder)) {
        ++statistics_.ignored;
      } else if (is_folder) {
        if (depth < kMaxFolders) folder(path, depth + 1);
      } else {
        file(path);
      }
    }
  }

  void file(const std::string& path) {
    const std::optional<CodeLanguage> language = language_of_file(path);
    const bool wanted =
        language && (options_.languages.empty() || std::find(options_.languages.begin(), options_.languages.end(),
                                                             name_of(*language)) != options_.languages.end());
    if (!wanted) {
      ++statistics_.other_files;
    } else if (!options_.samples.include_tests && is_test_path(path)) {
      ++statistics_.tests;
    } else {
      files_.push_back(path);
    }
  }

  fs::path root_;
  const CodeOptions& options_;
  CodeStatistics& statistics_;
  IgnorePatterns ignore_;
  std::vector<std::string> files_;
};

}  // namespace

void CodeOptions::check() const {
  const auto refuse = [](const std::string& what, const std::string& fix) { throw UserError(what, "datasets", fix); };
  if (samples.max_tokens < 2) refuse(fmt::format("max_tokens is {}", samples.max_tokens), "set at least 2");
  if (samples.overlap < 0 || samples.overlap >= samples.max_tokens) {
    refuse(fmt::format("overlap {} is not below max_tokens {}", samples.overlap, samples.max_tokens),
           "set a smaller overlap");
  }
  if (samples.min_tokens > samples.max_tokens) {
    refuse(fmt::format("min_tokens {} is above max_tokens {}", samples.min_tokens, samples.max_tokens),
           "no sample would be left: set a smaller one");
  }
  if (samples.kinds.empty()) refuse("kinds is empty", "remove it to use all kinds");
  for (const std::string& language : languages) {
    if (std::find(kCodeLanguages.begin(), kCodeLanguages.end(), language) != kCodeLanguages.end()) continue;
    refuse(fmt::format("'{}' is not a supported language.{}", language, did_you_mean(language, kCodeLanguages)),
           fmt::format("use {}", fmt::join(kCodeLanguages, ", ")));
  }
}

CodeOptions CodeOptions::parse(const Json& said, const std::string& where) {
  CodeOptions options;
  CodeSampleOptions& samples = options.samples;
  if (said.contains("kinds")) samples.kinds.clear();
  for (const Json& kind : said.value("kinds", Json::array())) {
    samples.kinds.push_back(code_sample_kind_of(kind.get<std::string>()));
  }
  samples.max_tokens = said.value("max_tokens", samples.max_tokens);
  samples.overlap = said.value("overlap", std::min(samples.overlap, samples.max_tokens / 2));
  samples.min_tokens = said.value("min_tokens", std::min(samples.min_tokens, samples.max_tokens));
  samples.include_tests = said.value("include_tests", samples.include_tests);
  options.languages = said.value("languages", options.languages);
  options.exclude_patterns = said.value("exclude_patterns", options.exclude_patterns);
  options.max_file_bytes = said.value("max_file_size", options.max_file_bytes);
  try {
    options.check();
    (void)IgnorePatterns(options.exclude_patterns);
  } catch (const UserError& error) {
    throw UserError(error.message(), where, error.fix());
  }
  return options;
}

std::string CodeStatistics::to_text(std::string_view separator) const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < languages.size(); ++i) {
    const Language& language = languages[i];
    if (language.files == 0) continue;
    parts.push_back(fmt::format("{}: {} files, {} bytes, {} samples", kCodeLanguages[i], language.files, language.bytes,
                                language.samples));
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    const CodeKindCount& count = kinds[i];
    if (count.found == 0) continue;
    std::string part =
        fmt::format("{}: {} found, {} created", name_of(static_cast<CodeSampleKind>(i)), count.found, count.created);
    if (count.too_short > 0) part += fmt::format(", {} below min_tokens", count.too_short);
    if (count.too_long > 0) part += fmt::format(", {} above max_tokens", count.too_long);
    parts.push_back(std::move(part));
  }
  const std::pair<const char*, int64_t> skipped[] = {
      {"in other languages", other_files}, {"excluded", ignored},       {"of tests", tests}, {"binary", binary},
      {"larger than max_file_size", huge}, {"not readable", unreadable}};
  std::string list;
  for (const auto& [what, count] : skipped) {
    if (count > 0) list += fmt::format("{}{} {}", list.empty() ? "skipped: " : ", ", count, what);
  }
  if (!list.empty()) parts.push_back(std::move(list));
  return fmt::format("{}", fmt::join(parts, separator));
}

bool is_test_path(std::string_view path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t slash = path.find('/', begin);
    const std::string_view part = path.substr(begin, slash == std::string_view::npos ? slash : slash - begin);
    if (slash != std::string_view::npos) {
      if (part == "tests" || part == "test" || part == "testing" || part == "benches") return true;
      begin = slash + 1;
      continue;
    }
    const std::string_view stem = part.substr(0, part.rfind('.'));
    return stem.starts_with("test_") || stem.ends_with("_test") || stem.ends_with("_tests") || stem == "tests" ||
           stem == "conftest";
  }
  return false;
}

std::vector<std::string> code_files(const std::string& root, const CodeOptions& options, CodeStatistics& statistics) {
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    throw UserError("a data set of type code is a folder of source files", root,
                    "set path to the root of a repository");
  }
  std::vector<std::string> files = RepositoryWalk(root, options, statistics).run();
  if (files.empty()) {
    throw UserError(fmt::format("no source file to read: {} files are in other languages, {} paths are excluded",
                                statistics.other_files, statistics.ignored),
                    root, "Rust, C++ and Python are read; !NAME in exclude_patterns removes a default pattern");
  }
  return files;
}

CodeReader::CodeReader(const std::string& root, CodeOptions options, const TokenCounter& count)
    : root_(root), options_(std::move(options)) {
  options_.check();
  const int64_t around = count("");
  count_ = [count, around](std::string_view text) { return count(text) - around; };
  CodeSampleOptions& samples = options_.samples;
  samples.max_tokens = std::max<int64_t>(1, samples.max_tokens - around);
  samples.overlap = std::min(samples.overlap, samples.max_tokens - 1);
  files_ = code_files(root, options_, statistics_);
  for (const std::string& file : files_) {
    std::error_code error;
    const auto size = fs::file_size(fs::path(root_) / file, error);
    if (!error) bytes_total_ += static_cast<int64_t>(size);
  }
}

bool CodeReader::next(Sample& sample) {
  while (samples_.empty()) {
    if (next_file_ == files_.size()) return false;
    read_file(files_[next_file_++]);
  }
  sample = std::move(samples_.back());
  samples_.pop_back();
  return true;
}

void CodeReader::read_file(const std::string& path) {
  const fs::path file = fs::path(root_) / path;
  std::error_code error;
  const auto size = static_cast<int64_t>(fs::file_size(file, error));
  if (!error) bytes_read_ += size;
  if (!error && size > options_.max_file_bytes) {
    ++statistics_.huge;
    return;
  }
  std::string text;
  try {
    text = read_whole_file(file, static_cast<uint64_t>(options_.max_file_bytes));
  } catch (const UserError&) {
    ++statistics_.unreadable;
    return;
  }
  if (text.find('\0') != std::string::npos || valid_utf8_prefix(text) != text.size()) {
    ++statistics_.binary;
    return;
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  const CodeLanguage language = *language_of_file(path);
  std::vector<CodeSample> created = code_samples(text, language, path, options_.samples, count_, statistics_.kinds);
  CodeStatistics::Language& counts = statistics_.languages[static_cast<size_t>(language)];
  ++counts.files;
  counts.bytes += size;
  counts.samples += static_cast<int64_t>(created.size());
  for (auto sample = created.rbegin(); sample != created.rend(); ++sample) {
    samples_.push_back({std::move(sample->text), file.string(), sample->line, sample->kind});
  }
}

}  // namespace hone
