// The files of a data set: one file, or those of a folder, by their kinds and splits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hone {

enum class FileKind { kJson, kCsv, kParquet, kText, kOther };

/// By its name: .jsonl, .ndjson and .json; .csv and .tsv; .txt and .md, each of them also compressed (.gz, .zst);
/// .parquet.
FileKind kind_of_file(const std::string& path);

/// The files to read and what is passed over.
struct DatasetFiles {
  std::vector<std::string> files;     ///< in the order of their names
  std::vector<std::string> not_read;  ///< names of files of a folder that are no data
  std::string table;                  ///< of a .json file: the list in it that `split` names; "": none is named
};

/// `path` is a file or a folder, whose folders inside are not searched, but for `data` where the folder itself has no
/// data. README.md and dataset_info.json and their like are no data beside other files.
/// `split` ("": none) names of a folder the files NAME.*, NAME-*.*, NAME_*.* or the folder NAME, also inside `data`;
/// of a .json file a list in it; of other files only train is taken, which says nothing.
/// Throws UserError: nothing there, no data, a kind of file that is not read (with what to do), no such split (with
/// those found), a folder with splits to train on and to test on and no `split`.
DatasetFiles files_of_dataset(const std::string& path, const std::string& split);

/// The name of a data set: that of its file without extension, or of its folder.
std::string name_from_path(const std::string& path);

}  // namespace hone
