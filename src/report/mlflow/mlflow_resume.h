// Which MLflow run an output folder belongs to, so that a resumed run goes on with it.
#pragma once

#include <string>

#include "report/mlflow/mlflow_store.h"

namespace hone {

/// Writes `folder`/mlflow_run.json. What cannot be written is left out: a resumed run then starts a new one.
void write_mlflow_run(const MlflowOptions& options, const std::string& run_id, const std::string& folder);

/// Sets run_id to that of the file, if it was kept at the same tracking_uri and no other is stated; then the params,
/// which the run has, are not sent again.
void continue_mlflow_run(MlflowOptions& options, const std::string& folder);

}  // namespace hone
