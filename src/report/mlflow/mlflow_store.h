// Where MLflow runs are kept: a tracking server, or a folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hone {

struct MlflowOptions {
  std::string tracking_uri = {};     ///< http(s)://host[:port][/path], file:PATH or a path; empty: ./mlruns
  std::string experiment_name = {};  ///< empty: MLflow's "Default"
  std::string experiment_id = {};    ///< instead of the name
  std::string run_id = {};           ///< a run to continue; empty: a new one
  std::string run_name = {};
  std::vector<std::pair<std::string, std::string>> params = {}, tags = {};
  std::string username = {}, password = {}, token = {};  ///< of the server; the token wins
  std::string ca_file = {};                              ///< certificates to trust; empty: the system's
  bool insecure_tls = false;                             ///< any certificate is accepted
};

/// Fills in what is not set from the variables that MLflow's own client reads: MLFLOW_TRACKING_URI, _EXPERIMENT_NAME,
/// _EXPERIMENT_ID, _RUN_ID, _TRACKING_USERNAME, _TRACKING_PASSWORD, _TRACKING_TOKEN, _TRACKING_INSECURE_TLS,
/// _TRACKING_SERVER_CERT_PATH, and MLFLOW_TAGS (a JSON object).
MlflowOptions with_mlflow_environment(MlflowOptions options);

/// UserError (naming mlflow_tracking_uri) for a URI that make_mlflow_store does not serve: a database, Databricks, or
/// one with a password in it, which would end up in logs and in config.resolved.yaml.
void check_mlflow_uri(const std::string& uri);

/// One value of one metric.
struct MlflowPoint {
  std::string key;
  double value = 0;
  int64_t timestamp = 0;  ///< milliseconds since 1970
  int64_t step = 0;
};

enum class MlflowStatus { kFinished, kFailed, kKilled };

class MlflowError : public std::runtime_error {
 public:
  enum class Kind {
    kRetry,    ///< nobody answers, or the server is not well: the same call may succeed later
    kRefused,  ///< the server does not take what was sent; other calls may succeed
    kFatal,    ///< no call will succeed: credentials, no such experiment or run
  };
  MlflowError(Kind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

/// Calls block, for seconds where nobody answers. Errors are MlflowError. Names are those that mlflow_name returns.
class MlflowStore {
 public:
  virtual ~MlflowStore() = default;

  /// Makes the experiment if there is none of that name and starts the run, or continues run_id. Returns the run's id.
  virtual std::string open(int64_t start_time) = 0;
  /// At most kMlflowMost params or points; a param that the run has with another value is refused.
  virtual void log_params(std::span<const std::pair<std::string, std::string>> params) = 0;
  virtual void log_points(std::span<const MlflowPoint> points) = 0;
  virtual void close(MlflowStatus status, int64_t end_time) = 0;
  /// For the log: where the run is to be seen.
  virtual std::string location() const = 0;
  /// Makes a call of another thread that is waiting return soon.
  virtual void cancel() {}
};

/// What one call may hold.
inline constexpr size_t kMlflowMostPoints = 1000, kMlflowMostParams = 100;

/// A server's or a folder's, as tracking_uri says. Contacts nobody yet.
std::unique_ptr<MlflowStore> make_mlflow_store(const MlflowOptions& options);

/// A name that MLflow takes: characters other than letters, digits and "_-. :/" become "_", as do empty and dotted
/// parts of a path; at most 250.
std::string mlflow_name(std::string_view name);

/// A value of a param: at most the 500 bytes that every version of MLflow keeps, cut between characters.
std::string mlflow_value(std::string_view value);

/// Milliseconds since 1970.
int64_t mlflow_now();

// An MLflow tracking server, through its REST API (api/2.0/mlflow).

/// How long one call may take.
struct MlflowTimeouts {
  int connect = 5, answer = 10;  ///< seconds, and until the next bytes of an answer
  int whole = 15;
};

/// Longer answers are not MLflow's.
constexpr int64_t kLongestMlflowAnswer = int64_t{8} << 20;

/// For http:// and https:// addresses, which may have a path in front of the API's. Contacts nobody yet.
std::unique_ptr<MlflowStore> make_mlflow_server(const MlflowOptions& options, MlflowTimeouts timeouts = {});

// Which MLflow run an output folder belongs to, so that a resumed run goes on with it.

/// Writes `folder`/mlflow_run.json. What cannot be written is left out: a resumed run then starts a new one.
void write_mlflow_run(const MlflowOptions& options, const std::string& run_id, const std::string& folder);

/// Sets run_id to that of the file, if it was kept at the same tracking_uri and no other is stated; then the params,
/// which the run has, are not sent again.
void continue_mlflow_run(MlflowOptions& options, const std::string& folder);

}  // namespace hone
