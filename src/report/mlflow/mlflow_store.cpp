#include "report/mlflow/mlflow_store.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>

#include "core/error.h"
#include "core/untrusted_json.h"
#include "report/mlflow/mlflow_folder.h"
#include "report/mlflow/mlflow_server.h"

namespace hone {
namespace {

bool is_server(const std::string& uri) { return uri.starts_with("http://") || uri.starts_with("https://"); }

/// "sqlite" of sqlite:///mlflow.db; "" of a path.
std::string scheme_of(const std::string& uri) {
  const size_t colon = uri.find(':');
  if (colon == std::string::npos || colon < 2) return "";
  const std::string scheme = uri.substr(0, colon);
  const bool letters = std::all_of(scheme.begin(), scheme.end(),
                                   [](unsigned char c) { return std::isalnum(c) != 0 || c == '+' || c == '-'; });
  return letters ? scheme : "";
}

std::string folder_of(std::string uri) {
  if (uri.empty()) return "mlruns";
  for (const std::string prefix : {"file://", "file:"}) {
    if (uri.starts_with(prefix)) return uri.substr(prefix.size());
  }
  return uri;
}

void add_tags(MlflowOptions& options, const std::string& text) {
  const Json json = parse_json(text);
  if (!json.is_object()) return;
  for (const auto& [name, value] : json.items()) {
    options.tags.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

}  // namespace

MlflowOptions with_mlflow_environment(MlflowOptions options) {
  const auto fill = [](std::string& field, const char* name) {
    if (const char* value = std::getenv(name); field.empty() && value != nullptr) field = value;
  };
  fill(options.tracking_uri, "MLFLOW_TRACKING_URI");
  fill(options.experiment_name, "MLFLOW_EXPERIMENT_NAME");
  if (options.experiment_name.empty()) fill(options.experiment_id, "MLFLOW_EXPERIMENT_ID");
  fill(options.run_id, "MLFLOW_RUN_ID");
  fill(options.username, "MLFLOW_TRACKING_USERNAME");
  fill(options.password, "MLFLOW_TRACKING_PASSWORD");
  fill(options.token, "MLFLOW_TRACKING_TOKEN");
  fill(options.ca_file, "MLFLOW_TRACKING_SERVER_CERT_PATH");
  std::string insecure, tags;
  fill(insecure, "MLFLOW_TRACKING_INSECURE_TLS");
  options.insecure_tls = options.insecure_tls || insecure == "true" || insecure == "1";
  fill(tags, "MLFLOW_TAGS");
  if (!tags.empty()) add_tags(options, tags);
  return options;
}

void check_mlflow_uri(const std::string& uri) {
  if (is_server(uri)) {
    const std::string host = uri.substr(uri.find("//") + 2), authority = host.substr(0, host.find('/'));
    if (authority.find('@') != std::string::npos) {
      throw UserError("the address has a user name or password in it", "mlflow_tracking_uri",
                      "give them as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN");
    }
    if (authority.empty() || authority[0] == ':') {
      throw UserError("the address names no host: " + uri, "mlflow_tracking_uri", "write http://HOST:5000");
    }
    return;
  }
  const std::string scheme = scheme_of(uri);
  if (scheme.empty() || scheme == "file") return;
  throw UserError("runs cannot be written to " + scheme + ": directly", "mlflow_tracking_uri",
                  "start `mlflow server --backend-store-uri " + uri + "` and give its http:// address, or a folder");
}

std::unique_ptr<MlflowStore> make_mlflow_store(const MlflowOptions& options) {
  check_mlflow_uri(options.tracking_uri);
  if (is_server(options.tracking_uri)) return make_mlflow_server(options);
  return std::make_unique<MlflowFolder>(folder_of(options.tracking_uri), options);
}

std::string mlflow_name(std::string_view name) {
  constexpr size_t kLongest = 250;
  std::string result, part;
  const auto end_part = [&] {
    if (part.empty() || part == "." || part == "..") part.assign(std::max<size_t>(1, part.size()), '_');
    result += part;
    part.clear();
  };
  for (const char c : name.substr(0, kLongest)) {
    if (c == '/') {
      end_part();
      result += c;
    } else {
      const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 && static_cast<unsigned char>(c) < 0x80;
      part += plain || std::string_view("_-. :").find(c) != std::string_view::npos ? c : '_';
    }
  }
  end_part();
  return result.substr(0, kLongest);
}

std::string mlflow_value(std::string_view value) {
  size_t size = std::min<size_t>(value.size(), 500);
  while (size < value.size() && size > 0 && (static_cast<unsigned char>(value[size]) & 0xC0) == 0x80) --size;
  return std::string(value.substr(0, size));
}

int64_t mlflow_now() {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  return duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace hone
