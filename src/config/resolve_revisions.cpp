// Revisions of repositories that stand in keys of their own become a part of the names: NAME@REVISION.
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "config/resolve_rules.h"
#include "core/base/error.h"
#include "hub/repository.h"

namespace hone {
namespace {

/// `name` with the revision. `key`: the key of the revision.
std::string with_revision(RepoType type, const std::string& name, const std::string& revision, const std::string& key,
                          const std::string& place) {
  if (revision.empty()) return name;
  std::error_code error;
  const std::optional<RepoName> repository = parse_repo_name(type, name);
  if (std::filesystem::exists(name, error) || !repository) {
    if (revision == "main") return name;  // what other tools' files often say of every model
    throw UserError(fmt::format("{}: {} is of a repository of the hub, and {} is a path here", key, revision, name),
                    place, "leave it out, or name the repository: ORG/NAME");
  }
  return at_revision(*repository, revision, key, place).text();
}

}  // namespace

void resolve_revisions(ResolvedConfig& config) {
  RunConfig::Model& model = config.run.model;
  model.model_name_or_path =
      with_revision(RepoType::kModel, model.model_name_or_path, std::exchange(model.model_revision, ""),
                    "model_revision", where(config, "model_revision"));
  for (const auto& [key, entries] :
       {std::pair{"datasets", &config.run.data.datasets}, {"eval_datasets", &config.run.data.eval_datasets}}) {
    for (DatasetConfig& entry : *entries) {
      entry.path = with_revision(RepoType::kDataset, entry.path, std::exchange(entry.revision, ""), "revision",
                                 where(config, key));
    }
  }
}

}  // namespace hone
