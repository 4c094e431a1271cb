// The files of a data set: one file, or those of a folder, by kind and split.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hone {

enum class FileKind { kJson, kCsv, kParquet, kText, kOther };

/// The kind of a file by its name: .jsonl, .ndjson and .json; .csv and .tsv; .txt and .md, also compressed (.gz, .zst);
/// .parquet.
FileKind kind_of_file(const std::string& path);

/// The files to read, and those to skip.
struct DatasetFiles {
  std::vector<std::string> files;     ///< in the order of their names
  std::vector<std::string> not_read;  ///< names of files in a folder that are not data
  std::string table;                  ///< for a .json file: the list in it that `split` selects; "": none is selected
};

/// `path` is a file, a folder, or the name of a data set of the Hugging Face hub (data/readers/hub_dataset.h), of which
/// `configuration` chooses one; for others it has no effect. A folder's subfolders are not searched, except `data` if
/// the folder itself contains no data. README.md, dataset_info.json and similar files are not data if there are other
/// files. `split` ("": none) selects in a folder the files NAME.*, NAME-*.*, NAME_*.* or the subfolder NAME, also in
/// `data`; in a .json file a list. For other files only train is accepted, which has no effect. A slice after it is
/// ignored. Throws UserError if the path does not exist, contains no data, or has an unsupported kind (with a fix), if
/// the split does not exist (with those found), and for a folder with training and test splits without a `split`.
DatasetFiles files_of_dataset(const std::string& path, const std::string& split, const std::string& configuration = "");

/// The name of a data set: that of its file without extension, of its folder, or of its repository.
std::string name_from_path(const std::string& path);

}  // namespace hone
