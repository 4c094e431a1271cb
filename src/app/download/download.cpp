#include "app/download/download.h"

#include <fmt/format.h>

#include <filesystem>

#include "app/estimate/estimate.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "data/readers/hub_dataset.h"
#include "hub/fetch_console.h"
#include "report/humanise.h"
#include "session/model_path.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// From here on a download says what it is for, and what cannot be trained here is asked for once more.
constexpr uint64_t kLarge = 10'000'000'000;

RepoName name_of_request(const DownloadOptions& options) {
  if (options.repo_type != "model" && options.repo_type != "dataset") {
    throw UserError(fmt::format("'{}' is not a kind of repository", options.repo_type), "--repo-type",
                    "use model or dataset");
  }
  const RepoType type = options.repo_type == "model" ? RepoType::kModel : RepoType::kDataset;
  std::optional<RepoName> name = parse_repo_name(type, options.id, true);
  if (!name) {
    throw UserError(fmt::format("'{}' is not the name of a repository", options.id), "ID",
                    "a name is ORG/NAME, as Qwen/Qwen3-30B-A3B, and ORG/NAME@REVISION for another revision than main");
  }
  return at_revision(*name, options.revision, "--revision", "--revision");
}

/// UserError if a model is large and no setting makes it fit on this machine.
void require_use(const HubSettings& settings, const FetchPlan& plan, const std::string& way_out) {
  if (plan.missing_bytes <= kLarge) return;
  // With the lock of this repository: the files are few and small, and their blobs are found again.
  fetch_locked(settings, plan.name, plan.commit, model_fetch(plan.name.repo, ModelParts::kDescriptions));
  const std::string reason = why_nothing_fits(plan.name.repo.id + "@" + plan.commit);
  if (reason.empty()) return;
  throw UserError(fmt::format("{} are a lot for a model that cannot be trained on this machine: {}",
                              human_bytes(plan.missing_bytes), reason),
                  plan.name.text(), way_out);
}

void print_result(const DownloadOptions& options, const RepoName& name, const FetchPlan& plan,
                  const fs::path& snapshot) {
  if (!options.json) return print_text(snapshot.string() + "\n");
  const Json result = {{"id", name.repo.id},        {"repo_type", options.repo_type},
                       {"revision", name.revision}, {"commit", plan.commit},
                       {"path", snapshot.string()}, {"files", plan.files.size()},
                       {"bytes", plan.bytes},       {"downloaded_bytes", plan.missing_bytes}};
  print_text(result.dump(2) + "\n");
}

}  // namespace

int run_download(const DownloadOptions& options) {
  const RepoName name = name_of_request(options);
  const HubSettings settings = hub_settings();
  const FilePatterns patterns{options.include, options.exclude};
  const bool model = name.repo.type == RepoType::kModel;
  FetchConsole console;
  if (fs::exists(name.repo.id)) {
    console.line(
        fmt::format("note: there is a folder {} here, which the verbs of hone read for this name", name.repo.id));
  }
  FetchOptions fetch = model ? model_fetch(name.repo, ModelParts::kAll, patterns) : dataset_fetch(name.repo, patterns);
  fetch.refresh = true;
  FetchPlan plan;
  fetch.plan = [&](const FetchPlan& made) {
    plan = made;
    if (model && patterns.empty() && !options.yes)
      require_use(settings, made, "give --yes to download it all the same");
  };
  const fs::path snapshot = fetch_repository(settings, name, console.shown(fetch));
  console.finish(snapshot);
  print_result(options, name, plan, snapshot);
  return 0;
}

void download_for_run(const std::string& name_or_path) {
  if (!is_hub_name(name_or_path)) return;
  (void)resolve_model_path(name_or_path, ModelParts::kAll, [&](const FetchPlan& plan) {
    require_use(hub_settings(), plan,
                fmt::format("hone download {} --yes downloads it all the same", plan.name.text()));
  });
}

}  // namespace hone
