// Folders of models, tokenizers and adapters by what a user wrote: a path, or the name of a repository of the Hugging
// Face hub (ORG/NAME or ORG/NAME@REVISION), which is downloaded if the cache does not have it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "hub/fetch.h"

namespace hone {

enum class ModelParts {
  kAll,           ///< with weights
  kDescriptions,  ///< config.json, the tokenizer and templates: to plan, to inspect, for a tokenizer
};

/// The folder of a model: a path, or a name of the hub; a folder of that name comes first. What the cache has is used
/// without asking the hub for newer files (`hone download` does). `plan`, if there is one, is called before bytes are
/// downloaded, and may throw. UserError if there is none.
std::filesystem::path resolve_model_path(const std::string& name_or_path, ModelParts parts = ModelParts::kAll,
                                         const std::function<void(const FetchPlan&)>& plan = {});

/// The folder of an adapter, in the same way; a path that does not exist is returned as it is, and "" for "".
std::filesystem::path resolve_adapter_path(const std::string& name_or_path);

/// Whether `text` is the name of a model of the hub: no file or folder has this name, nor is one beside it meant.
bool is_hub_name(const std::string& text);

/// How a model, with these parts, is taken from the hub; for resolve_model_path and hone download.
FetchOptions model_fetch(const Repo& repo, ModelParts parts, const FilePatterns& patterns = {});

/// Whether the cache has the model with these parts.
bool is_cached_model(const std::string& name, ModelParts parts);

}  // namespace hone
