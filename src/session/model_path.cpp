#include "session/model_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "hub/fetch_console.h"
#include "weights/model_folder.h"
#include "weights/other_weights.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// " Did you mean 'models/tiny'?" by what stands beside a path that does not exist, or "".
std::string near_names(const fs::path& path) {
  const fs::path folder = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, error)) {
    if (entry.is_directory(error)) names.push_back(entry.path().filename().string());
  }
  return did_you_mean(name, names);
}

/// The files of weights that a snapshot must have, by its index or by the numbers in their names; nothing if that
/// cannot be said.
std::vector<std::string> weights_wanted(const RepoCache& cache, const std::string& commit) {
  for (const char* single : {"model.safetensors", "adapter_model.safetensors"}) {
    if (cache.has(commit, single)) return {single};
  }
  const fs::path index = cache.snapshot(commit) / "model.safetensors.index.json";
  std::error_code error;
  if (!fs::is_regular_file(index, error)) return {};
  const Json json = read_json(index);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) return {};
  std::set<std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (file.is_string() && is_safe_file_name(file.get<std::string>())) files.insert(file.get<std::string>());
  }
  return {files.begin(), files.end()};
}

/// Whether a snapshot has what the repository's list of files says of a model, or, without a list, what its own files
/// say: other programs do not keep one.
bool is_complete(const RepoCache& cache, const std::string& commit, const RepoListing* listing, ModelParts parts) {
  const auto here = [&](const std::string& path) { return cache.has(commit, path); };
  const bool adapter = here("adapter_config.json");
  if (!adapter && !here("config.json")) return false;
  if (listing == nullptr) {
    if (parts == ModelParts::kDescriptions) return true;
    const std::vector<std::string> weights = weights_wanted(cache, commit);
    return !weights.empty() && std::all_of(weights.begin(), weights.end(), here);
  }
  const std::vector<RepoFile> files =
      parts == ModelParts::kAll ? choose_files(RepoType::kModel, *listing) : choose_descriptions(*listing);
  return std::all_of(files.begin(), files.end(), [&](const RepoFile& file) {
    // Other programs leave out what they do not read, as vocab.json beside tokenizer.json.
    const bool needed = file.path.ends_with(".safetensors") || file.path.ends_with(".safetensors.index.json") ||
                        file.path == "config.json" || file.path == "adapter_config.json" ||
                        file.path == "tokenizer.json" || file.path == "tokenizer_config.json" ||
                        file.path == "chat_template.jinja";
    return !needed || here(file.path);
  });
}

fs::path fetch_model(const RepoName& name, const FetchOptions& options) {
  if (fs::path cached = cached_repository(hub_cache_folder(), name, options); !cached.empty()) return cached;
  FetchConsole console;
  fs::path snapshot = fetch_repository(hub_settings(), name, console.shown(options));
  console.finish(snapshot);
  return snapshot;
}

/// Adds what else the user may have meant to an error about a name that the hub does not have.
[[noreturn]] void rethrow_with_folder(const UserError& error, const std::string& name) {
  const std::string last = name.substr(name.find('/') + 1);
  if (!fs::is_directory(last)) throw error;
  throw UserError(error.message(), error.where(),
                  fmt::format("if the folder {} here is meant, write ./{}; else {}", last, last, error.fix()));
}

}  // namespace

bool is_hub_name(const std::string& text) {
  std::error_code error;
  const fs::path path(text);
  return !fs::exists(path, error) && !fs::is_directory(path.parent_path(), error) &&
         parse_repo_name(RepoType::kModel, text).has_value();
}

FetchOptions model_fetch(const Repo& repo, ModelParts parts, const FilePatterns& patterns) {
  FetchOptions options;
  options.choose = [=](const RepoListing& listing) {
    if (parts == ModelParts::kDescriptions) return choose_descriptions(listing);
    std::vector<RepoFile> files = choose_files(RepoType::kModel, listing, patterns);
    const std::string fault = patterns.empty() ? model_fault(repo, listing) : "";
    if (!fault.empty()) {
      throw UserError(fmt::format("the repository '{}' is not a model that Hone reads", repo.id), repo.id, fault);
    }
    if (files.empty()) {
      throw UserError(fmt::format("no file of '{}' is left by --include and --exclude", repo.id), repo.id,
                      "give other patterns: '*' matches any characters, and programs are never taken");
    }
    return files;
  };
  options.is_enough = [parts](const RepoCache& cache, const std::string& commit, const RepoListing* listing) {
    return is_complete(cache, commit, listing, parts);
  };
  return options;
}

bool is_cached_model(const std::string& text, ModelParts parts) {
  const std::optional<RepoName> name = parse_repo_name(RepoType::kModel, text);
  return name && !cached_repository(hub_cache_folder(), *name, model_fetch(name->repo, parts)).empty();
}

fs::path resolve_model_path(const std::string& name_or_path, ModelParts parts,
                            const std::function<void(const FetchPlan&)>& plan) {
  const fs::path path(name_or_path);
  if (fs::is_directory(path)) {
    require_finished(path);
    return path;
  }
  if (fs::is_regular_file(path)) {
    refuse_gguf_file(path);
    throw UserError("a model is a folder, and this is a file", name_or_path,
                    "give the folder of a Hugging Face checkpoint (config.json, *.safetensors, tokenizer.json)");
  }
  if (!is_hub_name(name_or_path)) {
    const std::string near = near_names(path);
    throw UserError("there is no such model folder", name_or_path,
                    near.empty() ? "give the folder of a Hugging Face checkpoint, or an id such as Qwen/Qwen3-30B-A3B"
                                 : "check the path." + near);
  }
  const RepoName name = *parse_repo_name(RepoType::kModel, name_or_path);
  FetchOptions options = model_fetch(name.repo, parts);
  options.plan = plan;
  try {
    return fetch_model(name, options);
  } catch (const UserError& error) {
    rethrow_with_folder(error, name_or_path);
  }
}

fs::path resolve_adapter_path(const std::string& name_or_path) {
  if (name_or_path.empty() || !is_hub_name(name_or_path)) return name_or_path;
  const RepoName name = *parse_repo_name(RepoType::kModel, name_or_path);
  FetchOptions options = model_fetch(name.repo, ModelParts::kAll);
  options.choose = [choose = options.choose, name](const RepoListing& listing) {
    if (listing.find("adapter_config.json") == nullptr) {
      throw UserError(fmt::format("the repository '{}' is not an adapter: it has no adapter_config.json", name.repo.id),
                      name.repo.id, "name a repository with an adapter of PEFT; a model is named as the model");
    }
    return choose(listing);
  };
  return fetch_model(name, options);
}

}  // namespace hone
