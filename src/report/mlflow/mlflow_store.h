// The storage of MLflow runs: a tracking server, or a folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/tracker/tracker_store.h"

namespace hone {

struct MlflowOptions {
  std::string tracking_uri = {};     ///< http(s)://host[:port][/path], file:PATH or a path; empty: ./mlruns
  std::string experiment_name = {};  ///< empty: MLflow's "Default"
  std::string experiment_id = {};    ///< instead of the name
  std::string run_id = {};           ///< a run to continue; empty: a new one
  std::string run_name = {};
  std::vector<std::pair<std::string, std::string>> params = {}, tags = {};
  std::string username = {}, password = {}, token = {};  ///< for the server; the token takes precedence
  std::string ca_file = {};                              ///< certificates to trust; empty: the system's
  bool insecure_tls = false;                             ///< accept any certificate
};

/// Sets unset options from the variables of MLflow's own client: MLFLOW_TRACKING_URI, _EXPERIMENT_NAME, _EXPERIMENT_ID,
/// _RUN_ID, _TRACKING_USERNAME, _TRACKING_PASSWORD, _TRACKING_TOKEN, _TRACKING_INSECURE_TLS,
/// _TRACKING_SERVER_CERT_PATH, and MLFLOW_TAGS (a JSON object).
MlflowOptions with_mlflow_environment(MlflowOptions options);

/// Throws UserError (at mlflow_tracking_uri) for a URI that make_mlflow_store does not support: a database, Databricks,
/// or a URI with a password, which would appear in logs and in config.resolved.yaml.
void check_mlflow_uri(const std::string& uri);

/// What servers and folders have in common.
class MlflowStore : public TrackerStore {
 public:
  std::string name() const override { return "MLflow"; }
  std::string accepted_name(std::string_view name) const override;
  std::string accepted_value(std::string_view value) const override;
};

/// A server or a folder, by tracking_uri. Does not connect yet.
std::unique_ptr<TrackerStore> make_mlflow_store(const MlflowOptions& options);

/// Converts a name to one that MLflow accepts: characters other than letters, digits and "_-. :/" become "_", as do
/// empty and dotted parts of a path; at most 250 characters.
std::string mlflow_name(std::string_view name);

/// A param's value: at most the 500 bytes that every version of MLflow keeps, truncated between characters.
std::string mlflow_value(std::string_view value);

// An MLflow tracking server, with its REST API (api/2.0/mlflow).

/// The time limits of one call.
struct MlflowTimeouts {
  int connect = 5, answer = 10;  ///< seconds to connect, and until the next bytes of an answer
  int whole = 15;
};

/// The maximum length of an MLflow answer.
constexpr int64_t kLongestMlflowAnswer = int64_t{8} << 20;

/// For http:// and https:// addresses, which may have a path before the API's. Does not connect yet.
std::unique_ptr<TrackerStore> make_mlflow_server(const MlflowOptions& options, MlflowTimeouts timeouts = {});

// The MLflow run of an output folder, so a resumed run continues it.

/// Writes `folder`/mlflow_run.json. Ignores errors: a resumed run then starts a new one.
void write_mlflow_run(const MlflowOptions& options, const std::string& run_id, const std::string& folder);

/// Sets run_id from the file, if it has the same tracking_uri and run_id is unset; then clears the params, which the
/// run has.
void continue_mlflow_run(MlflowOptions& options, const std::string& folder);

}  // namespace hone
