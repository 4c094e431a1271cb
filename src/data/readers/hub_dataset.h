// Data sets of the Hugging Face hub by their names: which files of a repository are a configuration's split, by its
// README, by its folders and the files' names, or in the hub's copy as Parquet.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/readers/dataset_files.h"
#include "hub/fetch.h"

namespace hone {

/// One way in which a repository of data can be read.
struct HubConfiguration {
  struct Split {
    std::string name;
    std::vector<std::string> files;  ///< paths in the repository, sorted
  };
  std::string name;
  bool is_default = false;
  std::vector<Split> splits;
};

/// The configurations that a README's `configs:` states (YAML between two lines ---), with globs resolved among
/// `paths`; empty if it states none. UserError if it cannot be read.
std::vector<HubConfiguration> stated_configurations(std::string_view readme, const std::vector<std::string>& paths);

/// Configurations by the names of folders and files alone: one, named default, unless several folders beside data/ hold
/// files, which are one each.
std::vector<HubConfiguration> found_configurations(const std::vector<std::string>& paths);

/// Configurations of the branch refs/convert/parquet: CONFIGURATION/SPLIT/0000.parquet.
std::vector<HubConfiguration> parquet_configurations(const std::vector<std::string>& paths);

/// Whether a path names a data set of the hub (ORG/NAME, ORG/NAME@REVISION): no file or folder has this name.
bool is_hub_dataset(const std::string& path);

/// The files of a data set of the hub in the cache, downloaded if necessary. `configuration` and `split` may be "": the
/// only one, or the default one. Throws UserError with the names that there are, and errors of fetch_repository.
DatasetFiles files_of_hub_dataset(const std::string& name, const std::string& configuration, const std::string& split);

/// How a data set is taken as a whole, for hone download.
FetchOptions dataset_fetch(const Repo& repo, const FilePatterns& patterns);

}  // namespace hone
