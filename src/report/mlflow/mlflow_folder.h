// A folder of runs in the layout of MLflow's file store: <experiment>/<run>/{meta.yaml, metrics, params, tags}.
#pragma once

#include <filesystem>

#include "report/mlflow/mlflow_store.h"

namespace hone {

/// What `mlflow ui --backend-store-uri FOLDER` and `mlflow migrate-filestore` read.
class MlflowFolder : public MlflowStore {
 public:
  MlflowFolder(const std::filesystem::path& folder, MlflowOptions options);

  std::string open(int64_t start_time) override;
  void log_params(std::span<const std::pair<std::string, std::string>> params) override;
  void log_points(std::span<const MlflowPoint> points) override;
  void close(MlflowStatus status, int64_t end_time) override;
  std::string location() const override { return "run " + run_id_ + " in " + folder_.string(); }

 private:
  std::string experiment_id();
  std::string find_run_to_continue();
  void write_meta(int status, int64_t end_time) const;
  std::filesystem::path run_folder() const { return folder_ / experiment_ / run_id_; }

  std::filesystem::path folder_;
  MlflowOptions options_;
  std::string experiment_, run_id_;
  int64_t start_time_ = 0;
};

}  // namespace hone
