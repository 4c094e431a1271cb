#include "data/readers/dataset_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "core/base/error.h"
#include "core/files/file_bytes.h"
#include "data/readers/byte_reader.h"
#include "data/readers/hub_dataset.h"
#include "data/readers/split_slice.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

struct Refusal {
  std::string_view extension, fix;
};

constexpr std::string_view kUnpack = "decompress it first";
constexpr std::string_view kUnpackOther = "only .jsonl, .json, .csv, .tsv, .txt and .md files may be compressed";
constexpr std::string_view kToText = "export it as CSV or JSONL";

/// Kinds of data files that other tools read and this version does not.
constexpr std::array<Refusal, 13> kRefused = {
    {{".arrow", "datasets.save_to_disk wrote it: export the data with to_json or to_parquet"},
     {".gz", kUnpackOther},
     {".zst", kUnpackOther},
     {".bz2", kUnpack},
     {".xz", kUnpack},
     {".zip", kUnpack},
     {".tar", kUnpack},
     {".xlsx", kToText},
     {".xls", kToText},
     {".pkl", kToText},
     {".feather", kToText},
     {".yaml", "convert it to JSONL: one JSON object on each line"},
     {".yml", "convert it to JSONL: one JSON object on each line"}}};

constexpr std::string_view kReadable = ".jsonl, .json, .csv, .tsv, .parquet, .txt or .md, or .jsonl.gz or .jsonl.zst";

void refuse_other_kinds(const fs::path& path) {
  const std::string extension = path.extension().string();
  for (const Refusal& refusal : kRefused) {
    if (refusal.extension != extension) continue;
    throw UserError(fmt::format("{} files are not read", extension), path.string(), std::string(refusal.fix));
  }
}

/// Whether a file describes the data set and contains no data.
bool is_about_the_data(const std::string& name) {
  static constexpr std::array<std::string_view, 10> kNames = {
      "README.md",          "README.txt", "LICENSE.txt",  "LICENSE.md",        "dataset_info.json",
      "dataset_infos.json", "state.json", "CHANGELOG.md", "dataset_dict.json", "requirements.txt"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

struct Folder {
  std::vector<std::string> data, others, folders;  // sorted
};

Folder list_folder(const fs::path& path) {
  Folder folder;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.')) continue;
    if (entry.is_directory()) {
      folder.folders.push_back(entry.path().string());
    } else {
      (kind_of_file(name) == FileKind::kOther ? folder.others : folder.data).push_back(entry.path().string());
    }
  }
  if (error) throw UserError("cannot read the folder: " + error.message(), path.string());
  for (auto* list : {&folder.data, &folder.others, &folder.folders}) std::sort(list->begin(), list->end());
  return folder;
}

std::string file_name(const std::string& path) { return fs::path(path).filename().string(); }

/// The split of a file: "train" for train.jsonl, train-00000-of-00002.parquet and train_part.csv.
std::string split_of(const std::string& path) {
  const std::string stem = fs::path(path).stem().string();
  return stem.substr(0, stem.find_first_of("-_."));
}

bool is_for_testing(const std::string& split) {
  static constexpr std::array<std::string_view, 6> kNames = {"test", "validation", "valid", "val", "dev", "eval"};
  return std::find(kNames.begin(), kNames.end(), split) != kNames.end();
}

std::string some_names(const std::vector<std::string>& paths) {
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(paths.size(), 5); ++i) names += (i ? ", " : "") + file_name(paths[i]);
  return paths.size() > 5 ? names + ", …" : names;
}

[[noreturn]] void refuse_empty_folder(const fs::path& path, const Folder& folder) {
  for (const std::string& file : folder.others) refuse_other_kinds(file);
  std::vector<std::string> found = folder.folders;
  found.insert(found.end(), folder.others.begin(), folder.others.end());
  throw UserError("the folder holds no data file", path.string(),
                  found.empty() ? "the folder is empty"
                  : folder.folders.empty()
                      ? fmt::format("it holds {}; a data file is {}", some_names(found), kReadable)
                      : fmt::format("it holds {}: use the path of one of them, or set split to a folder "
                                    "inside",
                                    some_names(found)));
}

/// The data files; descriptions of the data go to not_read, unless there is nothing else.
DatasetFiles without_descriptions(const Folder& folder) {
  DatasetFiles result;
  for (const std::string& file : folder.data) {
    (is_about_the_data(file_name(file)) ? result.not_read : result.files).push_back(file);
  }
  if (result.files.empty()) std::swap(result.files, result.not_read);
  result.not_read.insert(result.not_read.end(), folder.others.begin(), folder.others.end());
  for (std::string& file : result.not_read) file = file_name(file);
  return result;
}

void refuse_mixed_splits(const fs::path& path, const DatasetFiles& result) {
  std::set<std::string> splits;
  for (const std::string& file : result.files) splits.insert(split_of(file));
  const bool tests = std::any_of(splits.begin(), splits.end(), is_for_testing);
  if (!tests || !splits.contains("train")) return;
  throw UserError(fmt::format("the folder holds the splits {}", fmt::join(splits, ", ")), path.string(),
                  "choose one: split: train in the data set's entry");
}

DatasetFiles whole_folder(const fs::path& path) {
  const Folder folder = list_folder(path);
  const fs::path inner = path / "data";
  if (folder.data.empty() && fs::is_directory(inner)) return whole_folder(inner);
  if (folder.data.empty()) refuse_empty_folder(path, folder);
  DatasetFiles result = without_descriptions(folder);
  refuse_mixed_splits(path, result);
  return result;
}

/// The files of a split in this folder, not in its parent; none if there is no such split. Adds the splits it has to
/// `found`.
DatasetFiles split_of_folder(const fs::path& path, const std::string& split, std::set<std::string>& found) {
  if (fs::is_directory(path / split)) {
    const Folder folder = list_folder(path / split);
    if (folder.data.empty()) refuse_empty_folder(path / split, folder);
    return without_descriptions(folder);
  }
  const Folder folder = list_folder(path);
  for (const std::string& inner : folder.folders) found.insert(file_name(inner));
  DatasetFiles result = without_descriptions(folder);
  for (const std::string& file : result.files) found.insert(split_of(file));
  std::erase_if(result.files, [&](const std::string& file) { return split_of(file) != split; });
  return result;
}

DatasetFiles split_anywhere(const fs::path& path, const std::string& split) {
  std::set<std::string> found;
  for (const fs::path& place : {path, path / "data"}) {
    if (!fs::is_directory(place)) continue;
    DatasetFiles result = split_of_folder(place, split, found);
    if (!result.files.empty()) return result;
  }
  const std::string known = found.empty() ? "nothing" : fmt::format("{}", fmt::join(found, ", "));
  throw UserError(fmt::format("the folder has no split '{}'.{}", split, did_you_mean(split, found)), path.string(),
                  fmt::format("it holds {}: a split is a folder or the beginning of the files' names", known));
}

/// The fix for a missing `path`: a similar name in its folder.
std::string instead_of(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) names.push_back(entry.path().filename().string());
  if (!error) return "check the path." + did_you_mean(path.filename().string(), names);
  return "check the path: its folder does not exist either; a data set of the Hugging Face hub is named ORG/NAME";
}

/// Refuses addresses: data are files, or data sets of the hub.
void refuse_address(const std::string& path) {
  const size_t scheme = path.find("://");
  if (scheme == std::string::npos || scheme == 0 || path.substr(0, scheme).find('/') != std::string::npos) return;
  const std::string name = path.substr(0, scheme);
  const std::string fix = name == "hf"   ? "write ORG/NAME, and ORG/NAME@REVISION for another revision than main"
                          : name == "s3" ? "copy it here first (aws s3 cp), or mount the bucket, and give the path"
                          : name == "gs"
                              ? "copy it here first (gcloud storage cp), or mount the bucket, and give the path"
                          : name == "file" ? "write the path alone"
                                           : "download it first (curl -LO), and give the path; a data set of the "
                                             "Hugging Face hub is named ORG/NAME";
  throw UserError(fmt::format("data are not read from {}:// addresses", name), path, fix);
}

}  // namespace

FileKind kind_of_file(const std::string& path) {
  const std::string_view unpacked = without_compression(path);
  const std::string extension = fs::path(unpacked).extension().string();
  if (extension == ".jsonl" || extension == ".ndjson" || extension == ".json") return FileKind::kJson;
  if (extension == ".csv" || extension == ".tsv") return FileKind::kCsv;
  if (extension == ".parquet" && unpacked == path) return FileKind::kParquet;
  if (extension == ".txt" || extension == ".md") return FileKind::kText;
  return FileKind::kOther;
}

namespace {

DatasetFiles find_files(const std::string& path, const std::string& split, const std::string& configuration) {
  refuse_address(path);
  if (is_hub_dataset(path)) return files_of_hub_dataset(path, configuration, split);
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) {
    throw UserError("there is no such file or folder", path, instead_of(path));
  }
  if (split.find_first_of(":%/+") != std::string::npos) {
    throw UserError(fmt::format("the split '{}' is not a name", split), path,
                    "write the name of one split; train[:100] reads its first 100 rows");
  }
  if (fs::is_directory(status)) return split.empty() ? whole_folder(path) : split_anywhere(path, split);
  if (kind_of_file(path) == FileKind::kOther) refuse_other_kinds(path);
  const bool json = without_compression(path).ends_with(".json");
  if (!split.empty() && split != "train" && !json) {
    throw UserError(fmt::format("the file has no split '{}'", split), path,
                    "split selects files or a folder inside a folder; remove it, or use the path of the file");
  }
  return {{path}, {}, json ? split : ""};
}

}  // namespace

DatasetFiles files_of_dataset(const std::string& path, const std::string& split, const std::string& configuration) {
  DatasetFiles found = find_files(path, parse_split(split).name, configuration);
  for (const std::string& file : found.files) require_regular_file(file);
  return found;
}

std::string name_from_path(const std::string& path) {
  if (is_hub_dataset(path)) return fs::path(path.substr(0, path.find('@'))).filename().string();
  fs::path file(path);
  if (!file.has_filename()) file = file.parent_path();
  const std::string name =
      (kind_of_file(path) == FileKind::kOther ? file.filename()
                                              : fs::path(without_compression(file.filename().string())).stem())
          .string();
  return name.empty() || name == "." || name == ".." ? "data" : name;
}

}  // namespace hone
