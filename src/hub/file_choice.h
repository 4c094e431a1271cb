// Which files of a repository are taken.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hub/repository.h"

namespace hone {

/// Whether a path matches a pattern: '*' matches any characters, also '/', '?' one, [abc] one of these, as the patterns
/// of huggingface_hub do. A pattern that ends with '/' is for all below it.
bool matches_pattern(std::string_view pattern, std::string_view path);

struct FilePatterns {
  std::vector<std::string> include, exclude;

  bool empty() const { return include.empty() && exclude.empty(); }
};

/// A model's weights (safetensors), tokenizer, chat templates and configurations, in the repository's own folder; a
/// data set's README.md and all files of data. With `include` instead all files that match one of them; without those
/// that match one of `exclude`. Programs (.py and others) are never taken.
std::vector<RepoFile> choose_files(RepoType type, const RepoListing& listing, const FilePatterns& patterns = {});

/// Files of a model that describe it, without weights: what planning needs.
std::vector<RepoFile> choose_descriptions(const RepoListing& listing);

/// What is wrong with a repository as a model: it has no safetensors, and why that may be; "" if nothing. With `repo`
/// for the advice.
std::string model_fault(const Repo& repo, const RepoListing& listing);

/// Files that programs look for in a model and need not be there: their absence is noted in the cache.
const std::vector<std::string>& optional_files();

}  // namespace hone
