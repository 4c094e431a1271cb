#include "train/run/tracker_packages.h"

#include "core/base/contains.h"

namespace hone {

std::vector<PackageOptions> tracker_packages(const RunConfig& config) {
  const RunConfig::Report& report = config.report;
  std::vector<PackageOptions> packages;
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty()) packages.back().settings.emplace_back(name, value);
  };
  if (contains(report.report_to, ReportTarget::kWandb)) {
    PackageOptions& wandb = packages.emplace_back();
    wandb.package = "wandb";
    wandb.project = report.wandb_project;
    wandb.run_name = report.wandb_name;
    wandb.run_id = report.wandb_run_id;
    wandb.tags = report.wandb_tags;
    set("entity", report.wandb_entity);
    set("mode", report.wandb_mode);
  }
  if (contains(report.report_to, ReportTarget::kTrackio)) {
    PackageOptions& trackio = packages.emplace_back();
    trackio.package = "trackio";
    trackio.project = report.trackio_project;
    set("space_id", report.trackio_space_id);
  }
  return packages;
}

void require_tracker_packages(const RunConfig& config) {
  for (const PackageOptions& options : tracker_packages(config)) require_package(options.package, "report_to");
}

}  // namespace hone
