// hone download: brings a model or a data set of the Hugging Face hub into the cache.
#pragma once

#include <string>
#include <vector>

namespace hone {

struct DownloadOptions {
  std::string id;        ///< ORG/NAME or ORG/NAME@REVISION
  std::string revision;  ///< a branch, a tag or a commit; "": main, or that of `id`
  std::string repo_type = "model";
  std::vector<std::string> include, exclude;  ///< patterns of files
  bool yes = false;                           ///< also if the model fits nowhere here
  bool json = false;
};

/// Downloads what the cache does not have of the newest commit, and prints the folder. Returns the exit code. Throws
/// UserError for errors of fetch_repository, and for a model of more than 10 GB that no setting makes fit, without
/// `yes`.
int run_download(const DownloadOptions& options);

/// Downloads a run's model if `name_or_path` names one of the hub that the cache does not have, under the same
/// condition, which `hone download --yes` lifts.
void download_for_run(const std::string& name_or_path);

}  // namespace hone
