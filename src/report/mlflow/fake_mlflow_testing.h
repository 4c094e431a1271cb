// An MLflow server for tests, which can be told to behave badly.
#pragma once

#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/json.h"

namespace hone {

class FakeMlflow {
 public:
  /// Called with the name of the call ("runs/log-batch") and its body before it is served; true: it has answered.
  using Behaviour = std::function<bool(const std::string& call, const Json& body, httplib::Response& response)>;

  explicit FakeMlflow(Behaviour behaviour = {}) : behaviour_(std::move(behaviour)) {
    const auto serve = [this](const httplib::Request& request, httplib::Response& response) {
      const std::string call = request.path.substr(prefix().size());
      const Json body = request.body.empty() ? Json::object() : Json::parse(request.body);
      {
        const std::lock_guard lock(mutex_);
        calls_.push_back(call);
        authorization_ = request.get_header_value("Authorization");
      }
      if (behaviour_ && behaviour_(call, body, response)) return;
      const std::lock_guard lock(mutex_);
      answer(call, request, body, response);
    };
    server_.Get(prefix() + ".*", serve);
    server_.Post(prefix() + ".*", serve);
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~FakeMlflow() {
    stopping_ = true;
    server_.stop();
    thread_.join();
  }

  std::string uri() const { return fmt::format("http://127.0.0.1:{}/mlflow/", port_); }

  /// Waits as a server that hangs; returns when the test is over.
  void hang() const {
    while (!stopping_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  std::vector<Json> points() const { return locked(points_); }
  std::map<std::string, std::string> params() const { return locked(params_); }
  std::map<std::string, std::string> tags() const { return locked(tags_); }
  std::string status() const { return locked(status_); }
  std::string authorization() const { return locked(authorization_); }
  size_t largest_batch() const { return locked(largest_batch_); }
  size_t count(const std::string& call) const {
    const auto calls = locked(calls_);
    return static_cast<size_t>(std::count(calls.begin(), calls.end(), call));
  }

 private:
  static std::string prefix() { return "/mlflow/api/2.0/mlflow/"; }

  template <class T>
  T locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  static void refuse(httplib::Response& response, int status, const char* code) {
    response.status = status;
    response.set_content(Json{{"error_code", code}, {"message", code}}.dump(), "application/json");
  }

  void answer(const std::string& call, const httplib::Request& request, const Json& body, httplib::Response& response) {
    Json answer = Json::object();
    if (call == "experiments/get-by-name") {
      const std::string name = request.get_param_value("experiment_name");
      if (!experiments_.contains(name)) return refuse(response, 404, "RESOURCE_DOES_NOT_EXIST");
      answer = {{"experiment", {{"experiment_id", "7"}, {"name", name}, {"lifecycle_stage", "active"}}}};
    } else if (call == "experiments/create") {
      experiments_.insert(body["name"].get<std::string>());
      answer = {{"experiment_id", "7"}};
    } else if (call == "runs/create" || call == "runs/get") {
      if (call == "runs/get" && request.get_param_value("run_id") != "r1") {
        return refuse(response, 404, "RESOURCE_DOES_NOT_EXIST");
      }
      if (call == "runs/create") {
        for (const Json& tag : body["tags"]) tags_[tag["key"]] = tag["value"];
      }
      answer = {{"run", {{"info", {{"run_id", "r1"}, {"experiment_id", "7"}}}}}};
    } else if (call == "runs/log-batch") {
      for (const Json& point : body.value("metrics", Json::array())) points_.push_back(point);
      for (const Json& param : body.value("params", Json::array())) params_[param["key"]] = param["value"];
      largest_batch_ = std::max(largest_batch_, body.value("metrics", Json::array()).size());
    } else if (call == "runs/update") {
      status_ = body["status"];
    } else {
      return refuse(response, 404, "ENDPOINT_NOT_FOUND");
    }
    response.set_content(answer.dump(), "application/json");
  }

  Behaviour behaviour_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
  std::vector<Json> points_;
  std::map<std::string, std::string> params_, tags_;
  std::set<std::string> experiments_;
  std::string status_, authorization_;
  size_t largest_batch_ = 0;
};

}  // namespace hone
