#include "data/readers/hub_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/files/file_bytes.h"
#include "hub/fetch_console.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostReadme = 4 << 20;
constexpr const char* kParquetBranch = "refs/convert/parquet";
constexpr const char* kDefault = "default";

std::string name_in(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_data(const std::string& path) {
  static const std::set<std::string> kOthers = {
      "README.md",  "LICENSE.md",   "LICENSE.txt", "dataset_info.json", "dataset_infos.json",
      "state.json", "CHANGELOG.md", "README.txt",  "dataset_dict.json", "requirements.txt"};
  const bool hidden = path.starts_with('.') || path.find("/.") != std::string::npos;
  return !hidden && kind_of_file(path) != FileKind::kOther && !kOthers.contains(name_in(path));
}

std::vector<std::string> data_among(const std::vector<std::string>& paths) {
  std::vector<std::string> data;
  std::copy_if(paths.begin(), paths.end(), std::back_inserter(data), is_data);
  std::sort(data.begin(), data.end());
  return data;
}

/// Whether a path matches a glob: * and ? stay between two '/', ** does not.
bool matches_glob(std::string_view glob, std::string_view path) {
  while (!glob.empty()) {
    if (glob.starts_with("**")) {
      std::string_view rest = glob.substr(2);
      if (rest.starts_with('/') && matches_glob(rest.substr(1), path)) return true;
      for (size_t skip = 0; skip <= path.size(); ++skip) {
        if (matches_glob(rest, path.substr(skip))) return true;
      }
      return false;
    }
    if (glob.front() == '*') {
      for (size_t skip = 0;; ++skip) {
        if (matches_glob(glob.substr(1), path.substr(skip))) return true;
        if (skip == path.size() || path[skip] == '/') return false;
      }
    }
    if (path.empty()) return false;
    size_t length = 1;
    if (glob.front() == '[' && glob.find(']', 2) != std::string_view::npos) {
      length = glob.find(']', 2) + 1;
      if (!matches_pattern(glob.substr(0, length), path.substr(0, 1))) return false;
    } else if (glob.front() == '?' ? path.front() == '/' : glob.front() != path.front()) {
      return false;
    }
    glob.remove_prefix(length);
    path.remove_prefix(1);
  }
  return path.empty();
}

/// "train" for train-00000-of-00002.parquet, in any folder; "" for other names.
std::string split_with_number(const std::string& path) {
  const std::string name = name_in(path);
  const size_t of = name.find("-of-"), dash = of == std::string::npos || of < 2 ? of : name.rfind('-', of - 1);
  if (of == std::string::npos || dash == std::string::npos || dash == 0) return "";
  const auto digits = [&](size_t begin, size_t end) {
    return begin < end &&
           std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                       name.begin() + static_cast<std::ptrdiff_t>(end), [](char c) { return c >= '0' && c <= '9'; });
  };
  return digits(dash + 1, of) ? name.substr(0, dash) : "";
}

/// The split that a word stands for, or "".
std::string split_of_word(const std::string& word) {
  static const std::map<std::string, std::string> kWords = {
      {"train", "train"},      {"training", "train"},       {"test", "test"},      {"testing", "test"},
      {"eval", "test"},        {"evaluation", "test"},      {"dev", "validation"}, {"val", "validation"},
      {"valid", "validation"}, {"validation", "validation"}};
  const auto found = kWords.find(in_lower_case(word));
  return found == kWords.end() ? "" : found->second;
}

/// The split that a word in the path, between characters that are no letters or digits, stands for; the file's name
/// before folders. "" without.
std::string split_in_words(const std::string& path) {
  std::string found, word;
  for (const char c : path + "/") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += c;
      continue;
    }
    if (const std::string split = split_of_word(word); !split.empty()) found = split;
    word.clear();
  }
  return found;
}

std::vector<HubConfiguration::Split> found_splits(const std::vector<std::string>& files) {
  for (const auto& split_of : {split_with_number, split_in_words}) {
    std::map<std::string, std::vector<std::string>> by_split;
    for (const std::string& file : files) {
      if (const std::string split = split_of(file); !split.empty()) by_split[split].push_back(file);
    }
    if (by_split.empty()) continue;
    std::vector<HubConfiguration::Split> splits;
    for (auto& [name, of] : by_split) splits.push_back({name, std::move(of)});
    return splits;
  }
  if (files.empty()) return {};
  return {{"train", files}};
}

std::vector<std::string> inside(const std::string& folder, const std::vector<std::string>& files) {
  std::vector<std::string> found;
  for (const std::string& file : files) {
    if (folder.empty() || file.starts_with(folder + "/")) found.push_back(file);
  }
  return found;
}

[[noreturn]] void refuse_readme(const std::string& what) {
  throw UserError("the configs of the data set's README.md cannot be read: " + what, "README.md",
                  "download it (hone download --repo-type dataset) and name its files in datasets");
}

std::string text_of(const YAML::Node& node, const char* what) {
  if (!node.IsScalar()) refuse_readme(fmt::format("{} is not a text", what));
  return node.Scalar();
}

/// The files of a pattern, or of a list of them.
std::vector<std::string> files_of_patterns(const YAML::Node& node, const std::string& folder,
                                           const std::vector<std::string>& files) {
  std::set<std::string> found;
  const auto add = [&](std::string pattern) {
    while (pattern.starts_with("./")) pattern.erase(0, 2);
    if (!folder.empty()) pattern = folder + "/" + pattern;
    for (const std::string& file : files) {
      if (matches_glob(pattern, file)) found.insert(file);
    }
  };
  if (node.IsSequence()) {
    for (const YAML::Node& pattern : node) add(text_of(pattern, "a path in data_files"));
  } else {
    add(text_of(node, "a path in data_files"));
  }
  return {found.begin(), found.end()};
}

std::vector<HubConfiguration::Split> stated_splits(const YAML::Node& node, const std::string& folder,
                                                   const std::vector<std::string>& files) {
  std::vector<HubConfiguration::Split> splits;
  if (node.IsMap()) {
    for (const auto& pair : node) {
      splits.push_back({text_of(pair.first, "a split"), files_of_patterns(pair.second, folder, files)});
    }
  } else if (node.IsSequence() && node.size() > 0 && node[0].IsMap()) {
    for (const YAML::Node& entry : node) {
      if (!entry.IsMap() || !entry["path"]) refuse_readme("an entry of data_files has no path");
      splits.push_back({entry["split"] ? text_of(entry["split"], "a split") : "train",
                        files_of_patterns(entry["path"], folder, files)});
    }
  } else {
    splits.push_back({"train", files_of_patterns(node, folder, files)});
  }
  return splits;
}

HubConfiguration stated_configuration(const YAML::Node& node, const std::vector<std::string>& files) {
  if (!node.IsMap()) refuse_readme("an entry is not a mapping");
  HubConfiguration configuration;
  configuration.name = node["config_name"] ? text_of(node["config_name"], "config_name") : kDefault;
  configuration.is_default = node["default"] && node["default"].as<bool>(false);
  std::string folder = node["data_dir"] ? text_of(node["data_dir"], "data_dir") : "";
  while (folder.starts_with("./")) folder.erase(0, 2);
  while (folder.ends_with('/')) folder.pop_back();
  configuration.splits =
      node["data_files"] ? stated_splits(node["data_files"], folder, files) : found_splits(inside(folder, files));
  return configuration;
}

}  // namespace

std::vector<HubConfiguration> stated_configurations(std::string_view readme, const std::vector<std::string>& paths) {
  if (!readme.starts_with("---\n") && !readme.starts_with("---\r\n")) return {};
  const size_t end = readme.find("\n---", 3);
  if (end == std::string_view::npos) return {};
  std::vector<HubConfiguration> configurations;
  const std::vector<std::string> files = data_among(paths);
  try {
    const YAML::Node head = YAML::Load(std::string(readme.substr(4, end - 3)));
    if (!head.IsMap() || !head["configs"]) return {};
    if (!head["configs"].IsSequence()) refuse_readme("it is not a list");
    for (const YAML::Node& entry : head["configs"]) configurations.push_back(stated_configuration(entry, files));
  } catch (const YAML::Exception& error) {
    refuse_readme(one_line(error.what()));
  }
  return configurations;
}

std::vector<HubConfiguration> found_configurations(const std::vector<std::string>& paths) {
  const std::vector<std::string> files = data_among(paths);
  std::set<std::string> folders;
  bool beside = false;  // files that are in no folder of their own
  for (const std::string& file : files) {
    const std::string first = file.find('/') == std::string::npos ? "" : file.substr(0, file.find('/'));
    const bool own = !first.empty() && first != "data" && split_of_word(first).empty();
    own ? (void)folders.insert(first) : (void)(beside = true);
  }
  if (folders.size() < 2 || beside) return {{kDefault, true, found_splits(files)}};
  std::vector<HubConfiguration> configurations;
  for (const std::string& folder : folders) {
    configurations.push_back({folder, false, found_splits(inside(folder, files))});
  }
  return configurations;
}

std::vector<HubConfiguration> parquet_configurations(const std::vector<std::string>& paths) {
  std::map<std::string, std::map<std::string, std::vector<std::string>>> found;
  for (const std::string& file : data_among(paths)) {
    const size_t first = file.find('/'), second = first == std::string::npos ? first : file.find('/', first + 1);
    if (second == std::string::npos || !file.ends_with(".parquet")) continue;
    std::string split = file.substr(first + 1, second - first - 1);
    if (split.starts_with("partial-")) split.erase(0, 8);
    found[file.substr(0, first)][split].push_back(file);
  }
  std::vector<HubConfiguration> configurations;
  for (auto& [name, splits] : found) {
    configurations.push_back({name, name == kDefault, {}});
    for (auto& [split, files] : splits) configurations.back().splits.push_back({split, std::move(files)});
  }
  return configurations;
}

namespace {

/// What the cache has of a repository without a list of its files: other programs do not keep one.
RepoListing listing_of_snapshot(const RepoCache& cache, const std::string& commit) {
  RepoListing listing{commit, {}};
  const fs::path snapshot = cache.snapshot(commit);
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(snapshot, error)) {
    if (entry.is_regular_file(error))
      listing.files.push_back({entry.path().lexically_relative(snapshot).string(), 0, "", "", ""});
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const RepoFile& a, const RepoFile& b) { return a.path < b.path; });
  return listing;
}

/// A repository at a commit, with its README in the cache.
class DataRepository {
 public:
  DataRepository(const RepoName& name, FetchConsole& console) : name_(name), console_(console) {
    const FetchOptions readme = some_files([](const RepoFile& file) { return file.path == "README.md"; });
    const fs::path root = hub_cache_folder();
    fs::path snapshot = cached_repository(root, name_, readme);
    if (snapshot.empty()) snapshot = fetch_repository(hub_settings(), name_, console_.shown(readme));
    const RepoCache cache(root, name_.repo);
    const std::string commit = snapshot.filename().string();
    const std::optional<RepoListing> known = cache.listing(commit);
    listing_ = known ? *known : listing_of_snapshot(cache, commit);
    readme_ = read_whole_file_if_there(snapshot / "README.md", kMostReadme).value_or("");
  }

  const RepoName& name() const { return name_; }
  const std::string& readme() const { return readme_; }
  std::vector<std::string> paths() const {
    std::vector<std::string> paths;
    for (const RepoFile& file : listing_.files) paths.push_back(file.path);
    return paths;
  }
  bool has_script() const { return listing_.find(name_in(name_.repo.id) + ".py") != nullptr; }

  /// Brings files into the cache; returns their paths.
  std::vector<std::string> get(const std::vector<std::string>& files) {
    const std::set<std::string> wanted(files.begin(), files.end());
    const FetchOptions options = some_files([&](const RepoFile& file) { return wanted.contains(file.path); });
    RepoName at = name_;
    at.revision = listing_.commit;
    const RepoCache cache(hub_cache_folder(), name_.repo);
    const bool here = std::all_of(files.begin(), files.end(),
                                  [&](const std::string& file) { return cache.has(listing_.commit, file); });
    const fs::path snapshot =
        here ? cache.snapshot(listing_.commit) : fetch_repository(hub_settings(), at, console_.shown(options));
    if (!here) console_.finish(snapshot);
    std::vector<std::string> paths;
    for (const std::string& file : files) paths.push_back((snapshot / file).string());
    return paths;
  }

 private:
  template <class Wanted>
  static FetchOptions some_files(Wanted wanted) {
    FetchOptions options;
    options.choose = [wanted](const RepoListing& listing) {
      std::vector<RepoFile> files;
      std::copy_if(listing.files.begin(), listing.files.end(), std::back_inserter(files), wanted);
      return files;
    };
    options.is_enough = [wanted](const RepoCache& cache, const std::string& commit, const RepoListing* listing) {
      if (listing == nullptr) return true;  // what is there is all that is known of it
      return std::all_of(listing->files.begin(), listing->files.end(),
                         [&](const RepoFile& file) { return !wanted(file) || cache.has(commit, file.path); });
    };
    return options;
  }

  RepoName name_;
  FetchConsole& console_;
  RepoListing listing_;
  std::string readme_;
};

bool has_files(const std::vector<HubConfiguration>& configurations) {
  return std::any_of(configurations.begin(), configurations.end(), [](const HubConfiguration& configuration) {
    return std::any_of(configuration.splits.begin(), configuration.splits.end(),
                       [](const HubConfiguration::Split& split) { return !split.files.empty(); });
  });
}

template <class Named>
std::vector<std::string> listed_names(const std::vector<Named>& list) {
  std::vector<std::string> names;
  for (const Named& item : list) names.push_back(item.name);
  return names;
}

const HubConfiguration& choose_configuration(const std::vector<HubConfiguration>& all, const std::string& name,
                                             const std::string& repository) {
  const std::vector<std::string> names = listed_names(all);
  for (const HubConfiguration& configuration : all) {
    if (!name.empty() ? configuration.name == name : configuration.is_default || all.size() == 1) return configuration;
  }
  for (const HubConfiguration& configuration : all) {
    if (name.empty() && configuration.name == kDefault) return configuration;
  }
  if (name.empty()) {
    throw UserError(fmt::format("the data set has the configurations {}", fmt::join(names, ", ")), repository,
                    fmt::format("choose one: name: {} in the data set's entry", names.front()));
  }
  throw UserError(fmt::format("the data set has no configuration '{}'.{}", name, did_you_mean(name, names)), repository,
                  fmt::format("name is one of: {}", fmt::join(names, ", ")));
}

const HubConfiguration::Split& choose_split(const HubConfiguration& configuration, const std::string& name,
                                            const std::string& repository) {
  std::vector<std::string> names;
  for (const HubConfiguration::Split& split : configuration.splits) {
    if (!split.files.empty()) names.push_back(split.name);
  }
  for (const HubConfiguration::Split& split : configuration.splits) {
    if (!split.files.empty() && (name.empty() ? names.size() == 1 : split.name == name)) return split;
  }
  if (names.empty()) {
    throw UserError(fmt::format("the configuration '{}' has no file that is read", configuration.name), repository,
                    "choose another name, or download the data set and convert its files");
  }
  if (name.empty()) {
    throw UserError(fmt::format("the data set has the splits {}", fmt::join(names, ", ")), repository,
                    fmt::format("choose one: split: {} in the data set's entry", names.front()));
  }
  throw UserError(fmt::format("the data set has no split '{}'.{}", name, did_you_mean(name, names)), repository,
                  fmt::format("split is one of: {}", fmt::join(names, ", ")));
}

}  // namespace

bool is_hub_dataset(const std::string& path) {
  std::error_code error;
  return !fs::exists(path, error) && !fs::is_directory(fs::path(path).parent_path(), error) &&
         kind_of_file(path) == FileKind::kOther && parse_repo_name(RepoType::kDataset, path).has_value();
}

DatasetFiles files_of_hub_dataset(const std::string& text, const std::string& configuration, const std::string& split) {
  FetchConsole console;
  DataRepository own(*parse_repo_name(RepoType::kDataset, text), console);
  std::vector<HubConfiguration> configurations = stated_configurations(own.readme(), own.paths());
  const bool stated = !configurations.empty();
  if (!stated) configurations = found_configurations(own.paths());
  std::optional<DataRepository> converted;
  // A program says what the files mean, or no file is read: the hub has a copy as Parquet of most such data sets.
  const bool readable = has_files(configurations);
  if (!own.name().stated && (!readable || (!stated && own.has_script()))) {
    RepoName branch = own.name();
    branch.revision = kParquetBranch;
    try {
      converted.emplace(branch, console);
      configurations = parquet_configurations(converted->paths());
    } catch (const UserError&) {
      converted.reset();
      if (readable) configurations = found_configurations(own.paths());
      if (!readable) {
        throw UserError("the data set has no file that is read, and the hub has no copy of it as Parquet", text,
                        "download it (hone download --repo-type dataset) and convert its files to JSONL");
      }
    }
  }
  const HubConfiguration& chosen = choose_configuration(configurations, configuration, text);
  const HubConfiguration::Split& part = choose_split(chosen, split, text);
  DatasetFiles files;
  files.files = (converted ? *converted : own).get(part.files);
  return files;
}

FetchOptions dataset_fetch(const Repo& repo, const FilePatterns& patterns) {
  FetchOptions options;
  options.choose = [=](const RepoListing& listing) {
    std::vector<RepoFile> files = choose_files(RepoType::kDataset, listing, patterns);
    if (files.empty()) {
      throw UserError(fmt::format("the data set '{}' has no file to download", repo.id), repo.id,
                      "see its files on its page; programs are never taken, patterns may leave out all others");
    }
    return files;
  };
  options.is_enough = [=](const RepoCache& cache, const std::string& commit, const RepoListing* listing) {
    if (listing == nullptr) return false;
    const std::vector<RepoFile> files = choose_files(RepoType::kDataset, *listing, patterns);
    return std::all_of(files.begin(), files.end(), [&](const RepoFile& file) { return cache.has(commit, file.path); });
  };
  return options;
}

}  // namespace hone
