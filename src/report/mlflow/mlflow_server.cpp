#include "report/mlflow/mlflow_store.h"

#include <fmt/format.h>
#include <httplib.h>

#include <cmath>
#include <optional>

#include "core/files/answer_limits.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "report/metrics_file.h"
#include "report/terminal.h"

namespace hone {
namespace {

using Kind = TrackerError::Kind;
using Parameters = httplib::Params;

/// JSON has no NaN and infinities; the API accepts them as text.
Json mlflow_number(double value) {
  if (std::isfinite(value)) return value;
  return nonfinite_name(value);
}

/// The error for an answer that is not a success.
TrackerError failure(const std::string& call, const httplib::Response& response) {
  const Json body = parse_json(std::string_view(response.body));
  std::string message;
  if (body.is_object() && body.contains("message") && body["message"].is_string()) {
    message = ": " + short_line(body["message"].get<std::string>());
  }
  const int status = response.status;
  const std::string what = fmt::format("{} was answered with {}{}", call, status, message);
  if (status == 401 || status == 403)
    return {Kind::kFatal, what + " (check MLFLOW_TRACKING_USERNAME, _PASSWORD or _TOKEN)"};
  if (status >= 300 && status < 400) {
    return {Kind::kFatal,
            fmt::format("{}: use the address {}", what, short_line(response.get_header_value("Location")))};
  }
  if (status == 404 && !body.is_object()) return {Kind::kFatal, what + ": no MLflow server answers at this address"};
  if (status == 404) return {Kind::kFatal, what};
  if (status == 408 || status == 429 || status >= 500) return {Kind::kRetry, what};
  return {Kind::kRefused, what};
}

bool has_code(const httplib::Response& response, const char* code) {
  const Json body = parse_json(std::string_view(response.body));
  return body.is_object() && body.contains("error_code") && body["error_code"] == code;
}

class MlflowServer : public MlflowStore {
 public:
  MlflowServer(const MlflowOptions& options, MlflowTimeouts timeouts)
      : options_(options),
        client_(host_part(options.tracking_uri)),
        path_(path_part(options.tracking_uri)),
        timeouts_(timeouts),
        limits_([this] { client_.stop(); }) {
    client_.set_socket_options([this](socket_t socket) { limits_.use_socket(socket); });
    client_.set_connection_timeout(timeouts.connect);
    client_.set_read_timeout(timeouts.answer);
    client_.set_write_timeout(timeouts.answer);
    client_.set_keep_alive(true);
    if (!options.token.empty()) {
      client_.set_bearer_token_auth(options.token);
    } else if (!options.username.empty()) {
      client_.set_basic_auth(options.username, options.password);
    }
#ifdef CPPHTTPLIB_OPENSSL_SUPPORT
    client_.enable_server_certificate_verification(!options.insecure_tls);
    if (!options.ca_file.empty()) client_.set_ca_cert_path(options.ca_file);
#endif
  }

  std::string open(int64_t start_time) override {
    if (!options_.run_id.empty()) {
      get("runs/get", {{"run_id", options_.run_id}});
      run_id_ = options_.run_id;
      post("runs/update", {{"run_id", run_id_}, {"status", "RUNNING"}});
    } else {
      const std::string experiment = experiment_id();
      Json tags = Json::array();
      for (const auto& [key, value] : options_.tags) tags.push_back({{"key", key}, {"value", value}});
      const Json answer = post(
          "runs/create",
          {{"experiment_id", experiment}, {"run_name", options_.run_name}, {"start_time", start_time}, {"tags", tags}});
      run_id_ = text_at(answer, {"run", "info", "run_id"});
    }
    return run_id_;
  }

  void log_params(std::span<const std::pair<std::string, std::string>> params) override {
    Json list = Json::array();
    for (const auto& [key, value] : params) list.push_back({{"key", key}, {"value", value}});
    post("runs/log-batch", {{"run_id", run_id_}, {"params", list}});
  }

  void log_points(std::span<const TrackerPoint> points) override {
    Json list = Json::array();
    for (const TrackerPoint& p : points) {
      list.push_back({{"key", p.key}, {"value", mlflow_number(p.value)}, {"timestamp", p.timestamp}, {"step", p.step}});
    }
    post("runs/log-batch", {{"run_id", run_id_}, {"metrics", list}});
  }

  void close(TrackerStatus status, int64_t end_time) override {
    const char* name = status == TrackerStatus::kFinished ? "FINISHED"
                       : status == TrackerStatus::kFailed ? "FAILED"
                                                          : "KILLED";
    post("runs/update", {{"run_id", run_id_}, {"status", name}, {"end_time", end_time}});
  }

  std::string location() const override { return fmt::format("run {} at {}", run_id_, options_.tracking_uri); }

  void cancel() override { client_.stop(); }

 private:
  static size_t path_begin(const std::string& uri) { return uri.find('/', uri.find("//") + 2); }
  static std::string host_part(const std::string& uri) { return uri.substr(0, path_begin(uri)); }
  static std::string path_part(const std::string& uri) {
    const size_t begin = path_begin(uri);
    std::string path = begin == std::string::npos ? "" : uri.substr(begin);
    while (path.ends_with('/')) path.pop_back();
    return path + "/api/2.0/mlflow/";
  }

  /// The answer with any status; `request` makes the call.
  template <class Request>
  httplib::Response answer_of(const std::string& call, Request request) {
    limits_.begin(kLongestMlflowAnswer, std::chrono::seconds(timeouts_.whole));
    const httplib::Result result = request();
    const AnswerLimits::Exceeded exceeded = limits_.end();
    if (exceeded == AnswerLimits::Exceeded::kBytes) {
      throw TrackerError(Kind::kFatal, call +
                                           ": the answer is longer than MLflow's are: no MLflow server answers at "
                                           "this address");
    }
    if (exceeded == AnswerLimits::Exceeded::kTime)
      throw TrackerError(Kind::kRetry, call + ": the answer takes too long");
    if (result) return *result;
    const bool certificate = result.error() == httplib::Error::SSLServerVerification;
    throw TrackerError(certificate ? Kind::kFatal : Kind::kRetry,
                       fmt::format("{}: {}", call,
                                   certificate ? "the server's certificate is not trusted "
                                                 "(set MLFLOW_TRACKING_SERVER_CERT_PATH to trust it)"
                                               : "no answer (" + httplib::to_string(result.error()) + ")"));
  }
  Json body_of(const std::string& call, const httplib::Response& response) const {
    if (response.status != 200) throw failure(call, response);
    Json body = parse_json(std::string_view(response.body));
    if (!body.is_object()) throw TrackerError(Kind::kFatal, call + ": no MLflow server answers at this address");
    return body;
  }
  httplib::Response send(const std::string& call, const Json& body) {
    const std::string text = body.dump(-1, ' ', false, Json::error_handler_t::replace);
    return answer_of(call, [&] { return client_.Post(path_ + call, text, "application/json"); });
  }
  Json post(const std::string& call, const Json& body) { return body_of(call, send(call, body)); }
  Json get(const std::string& call, const Parameters& parameters) {
    return body_of(call, answer_of(call, [&] { return client_.Get(path_ + call, parameters, httplib::Headers{}); }));
  }

  std::string text_at(const Json& answer, std::initializer_list<const char*> keys) const {
    const Json* value = &answer;
    for (const char* key : keys) {
      if (!value->is_object() || !value->contains(key)) {
        throw TrackerError(Kind::kFatal,
                           fmt::format("the server's answer has no '{}': it is not an MLflow server", key));
      }
      value = &(*value)[key];
    }
    return value->is_string() ? value->get<std::string>() : value->dump();
  }

  std::string experiment_id() {
    if (!options_.experiment_id.empty()) return options_.experiment_id;
    const std::string name = options_.experiment_name.empty() ? "Default" : options_.experiment_name;
    if (const std::optional<std::string> id = find_experiment(name)) return *id;
    const httplib::Response created = send("experiments/create", {{"name", name}});
    // Another run may have created it in the meantime.
    if (created.status != 200 && has_code(created, "RESOURCE_ALREADY_EXISTS")) {
      if (const std::optional<std::string> id = find_experiment(name)) return *id;
    }
    return text_at(body_of("experiments/create", created), {"experiment_id"});
  }

  std::optional<std::string> find_experiment(const std::string& name) {
    const std::string call = "experiments/get-by-name";
    const httplib::Response found = answer_of(call, [&] {
      return client_.Get(path_ + call, Parameters{{"experiment_name", name}}, httplib::Headers{});
    });
    if (found.status == 404 && has_code(found, "RESOURCE_DOES_NOT_EXIST")) return std::nullopt;
    const Json answer = body_of(call, found);
    std::string id = text_at(answer, {"experiment", "experiment_id"});
    const Json& experiment = answer["experiment"];
    if (experiment.contains("lifecycle_stage") && experiment["lifecycle_stage"] == "deleted") {
      throw TrackerError(Kind::kFatal, fmt::format("the experiment '{}' was deleted: restore it, or choose another "
                                                   "mlflow_experiment_name",
                                                   one_line(name)));
    }
    return id;
  }

  MlflowOptions options_;
  httplib::Client client_;
  std::string path_, run_id_;
  MlflowTimeouts timeouts_;
  AnswerLimits limits_;  // last, so it is destroyed first: it stops the client
};

}  // namespace

std::unique_ptr<TrackerStore> make_mlflow_server(const MlflowOptions& options, MlflowTimeouts timeouts) {
  return std::make_unique<MlflowServer>(options, timeouts);
}

}  // namespace hone
