#include "report/mlflow/mlflow_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <system_error>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "report/metrics_file.h"

namespace hone {

// A folder of runs in the layout of MLflow's file store: <experiment>/<run>/{meta.yaml, metrics, params, tags}.

/// For `mlflow ui --backend-store-uri FOLDER` and `mlflow migrate-filestore`.
class MlflowFolder : public MlflowStore {
 public:
  MlflowFolder(const std::filesystem::path& folder, MlflowOptions options);

  std::string open(int64_t start_time) override;
  void log_params(std::span<const std::pair<std::string, std::string>> params) override;
  void log_points(std::span<const TrackerPoint> points) override;
  void close(TrackerStatus status, int64_t end_time) override;
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

namespace {

namespace fs = std::filesystem;
using Kind = TrackerError::Kind;

// RunStatus of MLflow's service.proto.
constexpr int kRunning = 1, kFinished = 3, kFailed = 4, kKilled = 5;

template <class Action>
void or_retry(const Action& action) {
  try {
    action();
  } catch (const std::system_error& error) {
    throw TrackerError(Kind::kRetry, error.what());
  } catch (const UserError& error) {
    throw TrackerError(Kind::kRetry, error.what());
  }
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A JSON string is a valid YAML string.
std::string quoted(const std::string& text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

/// The text of a YAML scalar, as MLflow and this program write it: plain, 'single' or "double".
std::string unquoted(const std::string& value) {
  if (value.starts_with('"')) {
    const Json text = parse_json(std::string_view(value));
    return text.is_string() ? text.get<std::string>() : value;
  }
  if (value.size() < 2 || !value.starts_with('\'') || !value.ends_with('\'')) return value;
  std::string text = value.substr(1, value.size() - 2);
  for (size_t at = 0; (at = text.find("''", at)) != std::string::npos; ++at) text.erase(at, 1);
  return text;
}

/// The top-level keys of a meta.yaml, which has no other keys.
std::map<std::string, std::string> read_meta(const fs::path& path) {
  std::map<std::string, std::string> fields;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) fields[line.substr(0, colon)] = unquoted(line.substr(colon + 2));
  }
  return fields;
}

/// `count` random digits of `base`; the first is not 0.
std::string random_digits(int count, unsigned base) {
  std::random_device device;
  std::string text(1, "123456789abcdef"[device() % (base - 1)]);
  while (text.size() < static_cast<size_t>(count)) text += "0123456789abcdef"[device() % base];
  return text;
}

std::string value_text(double value) {
  return std::isnan(value) ? "nan" : std::isinf(value) ? (value > 0 ? "inf" : "-inf") : fmt::format("{}", value);
}

std::string file_uri(const fs::path& path) { return "file://" + path.string(); }

}  // namespace

MlflowFolder::MlflowFolder(const fs::path& folder, MlflowOptions options)
    : folder_(fs::absolute(folder).lexically_normal()), options_(std::move(options)) {}

std::string MlflowFolder::open(int64_t start_time) {
  start_time_ = start_time;
  or_retry([&] {
    if (!options_.run_id.empty()) {
      run_id_ = find_run_to_continue();
    } else {
      experiment_ = options_.experiment_id.empty() ? experiment_id() : options_.experiment_id;
      run_id_ = random_digits(32, 16);
      fs::create_directories(run_folder() / "artifacts");
      for (const char* name : {"metrics", "params", "tags"}) fs::create_directories(run_folder() / name);
      for (const auto& [key, value] : options_.tags) {
        write_durably((run_folder() / "tags" / mlflow_name(key)).string(), value);
      }
    }
    write_meta(kRunning, 0);
  });
  return run_id_;
}

std::string MlflowFolder::find_run_to_continue() {
  // The id is user input: search for it, and do not build a path from it.
  std::error_code none;
  for (const auto& experiment : fs::directory_iterator(folder_, none)) {
    for (const auto& run : fs::directory_iterator(experiment.path(), none)) {
      if (run.path().filename() != options_.run_id || !fs::exists(run.path() / "meta.yaml")) continue;
      experiment_ = experiment.path().filename();
      return options_.run_id;
    }
  }
  throw TrackerError(Kind::kFatal, fmt::format("there is no run {} in {}", options_.run_id, folder_.string()));
}

std::string MlflowFolder::experiment_id() {
  const std::string name = options_.experiment_name.empty() ? "Default" : options_.experiment_name;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder_, none)) {
    const auto meta = read_meta(entry.path() / "meta.yaml");
    const auto found = meta.find("name");
    if (found != meta.end() && found->second == name) return entry.path().filename();
  }
  const std::string id = name == "Default" ? "0" : random_digits(18, 10);
  const int64_t now = tracker_now();
  fs::create_directories(folder_ / id);
  write_durably((folder_ / id / "meta.yaml").string(),
                fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\nlast_update_time: {}\n"
                            "lifecycle_stage: active\nname: {}\n",
                            quoted(file_uri(folder_ / id)), now, id, now, quoted(name)));
  return id;
}

void MlflowFolder::write_meta(int status, int64_t end_time) const {
  const fs::path path = run_folder() / "meta.yaml";
  // A continued run keeps its name and start.
  const auto before = read_meta(path);
  const auto kept = [&](const char* key, const std::string& value) {
    const auto found = before.find(key);
    return found == before.end() ? value : found->second;
  };
  const char* user = std::getenv("USER");
  write_durably(
      path.string(),
      fmt::format("artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: '{}'\n"
                  "lifecycle_stage: active\nrun_id: {}\nrun_name: {}\nsource_name: ''\nsource_type: 4\n"
                  "source_version: ''\nstart_time: {}\nstatus: {}\ntags: []\nuser_id: {}\n",
                  quoted(file_uri(run_folder() / "artifacts")), end_time == 0 ? "null" : fmt::to_string(end_time),
                  experiment_, run_id_, quoted(kept("run_name", options_.run_name)),
                  kept("start_time", fmt::to_string(start_time_)), status,
                  quoted(kept("user_id", user == nullptr ? "" : user))));
}

void MlflowFolder::log_params(std::span<const std::pair<std::string, std::string>> params) {
  or_retry([&] {
    for (const auto& [key, value] : params) {
      const fs::path path = run_folder() / "params" / key;
      if (!fs::exists(path)) {
        fs::create_directories(path.parent_path());
        write_durably(path.string(), value);
      } else if (read_text(path) != value) {
        throw TrackerError(Kind::kRefused, "the run has another value of the param " + key);
      }
    }
  });
}

void MlflowFolder::log_points(std::span<const TrackerPoint> points) {
  std::map<std::string, std::string> lines;
  for (const TrackerPoint& point : points) {
    lines[point.key] += fmt::format("{} {} {}\n", point.timestamp, value_text(point.value), point.step);
  }
  or_retry([&] {
    for (const auto& [key, text] : lines) AppendFile((run_folder() / "metrics" / key).string()).write(text);
  });
}

void MlflowFolder::close(TrackerStatus status, int64_t end_time) {
  or_retry([&] {
    write_meta(status == TrackerStatus::kFinished ? kFinished
               : status == TrackerStatus::kFailed ? kFailed
                                                  : kKilled,
               end_time);
  });
}

namespace {

bool is_server(const std::string& uri) { return uri.starts_with("http://") || uri.starts_with("https://"); }

/// The scheme of a URI: "sqlite" for sqlite:///mlflow.db; "" for a path.
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
                      "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN");
    }
    if (authority.empty() || authority[0] == ':') {
      throw UserError("the address has no host: " + uri, "mlflow_tracking_uri", "write http://HOST:5000");
    }
    return;
  }
  const std::string scheme = scheme_of(uri);
  if (scheme.empty() || scheme == "file") return;
  throw UserError("runs cannot be written to " + scheme + ": directly", "mlflow_tracking_uri",
                  "start `mlflow server --backend-store-uri " + uri + "` and use its http:// address, or a folder");
}

std::unique_ptr<TrackerStore> make_mlflow_store(const MlflowOptions& options) {
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

namespace {

std::string path_in(const std::string& folder) { return folder + "/mlflow_run.json"; }

}  // namespace

void write_mlflow_run(const MlflowOptions& options, const std::string& run_id, const std::string& folder) {
  write_tracker_run(path_in(folder), Json{{"tracking_uri", options.tracking_uri}, {"run_id", run_id}});
}

void continue_mlflow_run(MlflowOptions& options, const std::string& folder) {
  if (!options.run_id.empty()) return;
  options.run_id = read_tracker_run(path_in(folder), Json{{"tracking_uri", options.tracking_uri}});
  if (!options.run_id.empty()) options.params.clear();
}

std::string MlflowStore::accepted_name(std::string_view name) const { return mlflow_name(name); }
std::string MlflowStore::accepted_value(std::string_view value) const { return mlflow_value(value); }

}  // namespace hone
