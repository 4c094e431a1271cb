// An MLflow tracking server, through its REST API (api/2.0/mlflow).
#pragma once

#include "report/mlflow/mlflow_store.h"

namespace hone {

/// How long one call may take.
struct MlflowTimeouts {
  int connect = 5, answer = 10;  ///< seconds, and until the next bytes of an answer
  int whole = 15;
};

/// Longer answers are not MLflow's.
constexpr int64_t kLongestMlflowAnswer = int64_t{8} << 20;

/// For http:// and https:// addresses, which may have a path in front of the API's. Contacts nobody yet.
std::unique_ptr<MlflowStore> make_mlflow_server(const MlflowOptions& options, MlflowTimeouts timeouts = {});

}  // namespace hone
