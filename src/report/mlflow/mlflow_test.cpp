#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "report/folder_testing.h"
#include "report/mlflow/mlflow_store.h"
#include "report/mlflow/system_metrics.h"
#include "report/tracker/tracker_sender.h"

namespace hone {

// An MLflow server for tests, with configurable faults.

class FakeMlflow {
 public:
  /// Called with the name of the call ("runs/log-batch") and its body before it is served; returns true if it has
  /// answered.
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

  /// Waits like a server that hangs; returns when the test is over.
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

namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr TrackerPatience kQuick{
    .together = milliseconds(5), .first_retry = milliseconds(10), .at_end = milliseconds(3000)};

MlflowOptions options_for(const std::string& uri) {
  return {.tracking_uri = uri, .experiment_name = "fine-tuning", .run_name = "one", .params = {{"lr", "1e-4"}}};
}

std::vector<Metric> one(const std::string& name, double value) { return {{"step", 1, true}, {name, value}}; }

/// Sends `steps` points and ends the run.
TrackerCounts run_against(const MlflowOptions& options, int steps, TrackerPatience patience = kQuick,
                          MlflowTimeouts timeouts = {.connect = 1, .answer = 1}) {
  TrackerSender sender(make_mlflow_server(options, timeouts), options.params, patience);
  for (int step = 1; step <= steps; ++step) sender.log(step, one("loss", 1.0 / step));
  return sender.end(TrackerStatus::kFinished);
}

std::string joined(const std::vector<TrackerNotice>& notices) {
  std::string text;
  for (const TrackerNotice& notice : notices) text += notice.text + "\n";
  return text;
}

TEST(Mlflow, EveryPointArrivesOnceWithParamsAndStatus) {
  const FakeMlflow server;
  MlflowOptions options = options_for(server.uri());
  options.tags = {{"team", "a"}};
  for (int i = 0; i < 250; ++i) options.params.emplace_back("p" + std::to_string(i), std::string(600, 'x'));
  const TrackerCounts counts = run_against(options, 2500);
  EXPECT_EQ(counts.sent, 2500);
  EXPECT_EQ(counts.dropped + counts.refused, 0);
  EXPECT_TRUE(counts.closed);
  ASSERT_EQ(server.points().size(), 2500u);
  EXPECT_EQ(server.points()[41]["step"], 42);
  EXPECT_EQ(server.points()[1]["value"], 0.5);
  EXPECT_LE(server.largest_batch(), kTrackerMostPoints);
  EXPECT_EQ(server.params().size(), 251u);
  EXPECT_EQ(server.params()["p7"].size(), 500u);
  EXPECT_EQ(server.tags()["team"], "a");
  EXPECT_EQ(server.status(), "FINISHED");
  EXPECT_EQ(server.count("runs/create"), 1u);
}

TEST(Mlflow, AnExperimentThatIsThereIsUsed) {
  const FakeMlflow server;
  run_against(options_for(server.uri()), 1);
  run_against(options_for(server.uri()), 1);
  EXPECT_EQ(server.count("experiments/create"), 1u);
  EXPECT_EQ(server.count("runs/create"), 2u);
}

TEST(Mlflow, ServerErrorsAreTriedAgain) {
  std::atomic<int> failures = 5;
  const FakeMlflow server([&](const std::string&, const Json&, httplib::Response& response) {
    if (failures-- <= 0) return false;
    response.status = failures % 2 == 0 ? 500 : 429;
    return true;
  });
  const TrackerCounts counts = run_against(options_for(server.uri()), 10);
  EXPECT_EQ(counts.sent, 10);
  EXPECT_EQ(server.points().size(), 10u);
  EXPECT_EQ(server.status(), "FINISHED");
}

/// A server that reads a request and then sends given bytes until the client closes.
class EndlessServer {
 public:
  EndlessServer(std::string begin, std::string then, milliseconds pause)
      : begin_(std::move(begin)), then_(std::move(then)), pause_(pause) {
    sockaddr_in address{AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~EndlessServer() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  EndlessServer(const EndlessServer&) = delete;
  EndlessServer& operator=(const EndlessServer&) = delete;
  std::string uri() const { return "http://127.0.0.1:" + std::to_string(port_); }
  size_t sent() const { return sent_; }

 private:
  void serve() {
    while (!stopping_) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      const timeval patience{0, 200'000};  // a client that has given up may leave its end open, and read nothing
      setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
      std::string request(65536, '\0');
      bool open = ::recv(client, request.data(), request.size(), 0) > 0;
      open = open && ::send(client, begin_.data(), begin_.size(), MSG_NOSIGNAL) >= 0;
      while (open && !stopping_) {
        const ssize_t count = ::send(client, then_.data(), then_.size(), MSG_NOSIGNAL);
        open = count >= 0;  // without data to send the connection stays open
        if (open) sent_ += static_cast<size_t>(count);
        std::this_thread::sleep_for(pause_);
      }
      ::close(client);
    }
  }

  const std::string begin_, then_;
  const milliseconds pause_;
  const int listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<size_t> sent_{0};
  std::thread thread_;
};

TEST(Mlflow, AnAnswerWithoutEndSwitchesItOff) {
  const std::string ok = "HTTP/1.1 200 OK\r\n", piece(1 << 16, '[');
  const std::pair<std::string, std::string> answers[] = {
      {ok + "Content-Length: 99999999999\r\n\r\n", piece},
      {ok + "Transfer-Encoding: chunked\r\n\r\n", "10000\r\n" + piece + "\r\n"},
      {ok + "X: ", piece}};
  for (const auto& [begin, then] : answers) {
    const EndlessServer server(begin, then, milliseconds(0));
    const MlflowOptions options = options_for(server.uri());
    TrackerSender sender(make_mlflow_server(options), options.params, kQuick);
    sender.log(1, one("loss", 1.0));
    std::string notices;
    for (int i = 0; i < 500 && notices.find("switched off") == std::string::npos; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      notices += joined(sender.take_notices());
    }
    EXPECT_THAT(notices, HasSubstr("the answer is longer than MLflow's are"));
    const auto at_end = Clock::now();
    EXPECT_EQ(sender.end(TrackerStatus::kFinished).dropped, 1);
    EXPECT_LT(Clock::now() - at_end, milliseconds(500));
    // Data in transit at the time of the check is added.
    EXPECT_LT(server.sent(), static_cast<size_t>(kLongestMlflowAnswer) + (64u << 20));
  }
}

TEST(Mlflow, AServerThatNeverAnsweredIsNotWaitedForAsLong) {
  const EndlessServer server("", "", milliseconds(10));
  const MlflowOptions options = options_for(server.uri());
  TrackerPatience patience = kQuick;
  patience.at_end_unreached = milliseconds(300);
  const auto begin = Clock::now();
  const TrackerCounts counts = run_against(options, 1, patience, {.connect = 10, .answer = 10});
  EXPECT_EQ(counts.dropped, 1);
  EXPECT_LT(Clock::now() - begin, milliseconds(2000));
}

TEST(Mlflow, AnAnswerThatDripsIsGivenUp) {
  const EndlessServer server("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", " ", milliseconds(100));
  const MlflowOptions options = options_for(server.uri());
  const auto store = make_mlflow_server(options, {.connect = 1, .answer = 10, .whole = 1});
  const auto begin = Clock::now();
  try {
    store->open(0);
    FAIL() << "it is not an answer";
  } catch (const TrackerError& error) {
    EXPECT_EQ(error.kind(), TrackerError::Kind::kRetry);
    EXPECT_THAT(error.what(), HasSubstr("takes too long"));
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
}

TEST(Mlflow, AConnectionClosedInTheMiddleOfAnAnswerIsTriedAgain) {
  std::atomic<int> failures = 2;
  const FakeMlflow server([&](const std::string& call, const Json&, httplib::Response& response) {
    if (call != "runs/log-batch" || failures-- <= 0) return false;
    response.set_content_provider(1000, "application/json", [](size_t, size_t, httplib::DataSink& sink) {
      sink.write("{\"hal", 5);
      return false;
    });
    return true;
  });
  const TrackerCounts counts = run_against(options_for(server.uri()), 3);
  EXPECT_EQ(counts.sent, 3);
  EXPECT_EQ(server.status(), "FINISHED");
}

TEST(Mlflow, ADeadServerCostsTheRunNothingButItsPoints) {
  const std::string nobody = "http://127.0.0.1:1";
  const MlflowOptions options = options_for(nobody);
  TrackerPatience patience = kQuick;
  patience.at_end = milliseconds(200);
  TrackerSender sender(make_mlflow_server(options, {.connect = 1, .answer = 1}), options.params, patience);
  const Clock::time_point begin = Clock::now();
  for (int step = 1; step <= 10'000; ++step) sender.log(step, one("loss", 1));
  EXPECT_LT(Clock::now() - begin, milliseconds(1000));  // 100 µs per step, with a sanitizer on a busy machine
  const TrackerCounts counts = sender.end(TrackerStatus::kFinished);
  EXPECT_LT(Clock::now() - begin, milliseconds(4000));
  EXPECT_EQ(counts.dropped, 10'000);
  EXPECT_EQ(counts.sent, 0);
  EXPECT_FALSE(counts.closed);
  EXPECT_THAT(joined(sender.take_notices()), HasSubstr("no answer"));
}

TEST(Mlflow, AServerThatHangsDoesNotHoldUpTheEnd) {
  FakeMlflow* hanging = nullptr;
  FakeMlflow server([&](const std::string& call, const Json&, httplib::Response&) {
    if (call == "runs/log-batch") hanging->hang();
    return false;
  });
  hanging = &server;
  TrackerPatience patience = kQuick;
  patience.at_end = milliseconds(300);
  const Clock::time_point begin = Clock::now();
  const TrackerCounts counts = run_against(options_for(server.uri()), 100, patience, {.connect = 5, .answer = 60});
  EXPECT_LT(Clock::now() - begin, milliseconds(3000));
  EXPECT_EQ(counts.dropped, 100);
  EXPECT_FALSE(counts.closed);
}

TEST(Mlflow, WhatWaitsIsBounded) {
  const MlflowOptions options = options_for("http://127.0.0.1:1");
  TrackerPatience patience = kQuick;
  patience.most_waiting = 100;
  patience.at_end = milliseconds(100);
  TrackerSender sender(make_mlflow_server(options, {.connect = 1, .answer = 1}), options.params, patience);
  for (int step = 1; step <= 5'000; ++step) sender.log(step, one("loss", 1));
  EXPECT_EQ(sender.end(TrackerStatus::kFinished).dropped, 5'000);
}

TEST(Mlflow, WrongCredentialsSwitchItOffWithOneLine) {
  const FakeMlflow server([](const std::string&, const Json&, httplib::Response& response) {
    response.status = 401;
    return true;
  });
  const MlflowOptions options = options_for(server.uri());
  TrackerSender sender(make_mlflow_server(options), options.params, kQuick);
  for (int step = 1; step <= 50; ++step) sender.log(step, one("loss", 1));
  const TrackerCounts counts = sender.end(TrackerStatus::kFinished);
  EXPECT_EQ(counts.dropped, 50);
  const std::vector<TrackerNotice> notices = sender.take_notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_TRUE(notices[0].warning);
  EXPECT_THAT(notices[0].text, testing::AllOf(HasSubstr("switched off"), HasSubstr("MLFLOW_TRACKING_")));
  EXPECT_EQ(server.count("experiments/get-by-name"), 1u);  // and there is no second call
}

TEST(Mlflow, AnotherKindOfServerIsNamed) {
  const FakeMlflow server([](const std::string&, const Json&, httplib::Response& response) {
    response.set_content("<html>hello</html>", "text/html");
    return true;
  });
  const MlflowOptions options = options_for(server.uri());
  TrackerSender sender(make_mlflow_server(options), options.params, kQuick);
  sender.end(TrackerStatus::kFinished);
  EXPECT_THAT(joined(sender.take_notices()), HasSubstr("no MLflow server answers at this address"));
}

TEST(Mlflow, OneRefusedValueDoesNotTakeTheOthersWithIt) {
  const FakeMlflow server([](const std::string& call, const Json& body, httplib::Response& response) {
    if (call != "runs/log-batch" || body.dump().find("bad") == std::string::npos) return false;
    response.status = 400;
    response.set_content(R"({"error_code": "INVALID_PARAMETER_VALUE", "message": "bad is bad"})", "application/json");
    return true;
  });
  MlflowOptions options = options_for(server.uri());
  options.params = {{"a", "1"}, {"bad", "2"}, {"c", "3"}};
  TrackerSender sender(make_mlflow_server(options), options.params, kQuick);
  for (int step = 1; step <= 20; ++step) sender.log(step, one(step == 13 ? "bad" : "loss", step));
  const TrackerCounts counts = sender.end(TrackerStatus::kFinished);
  EXPECT_EQ(counts.sent, 19);
  EXPECT_EQ(counts.refused, 1);
  EXPECT_EQ(server.params().size(), 2u);
  EXPECT_THAT(joined(sender.take_notices()), HasSubstr("bad is bad"));
}

TEST(Mlflow, NumbersThatAreNotFiniteTravelAsText) {
  const FakeMlflow server;
  const MlflowOptions options = options_for(server.uri());
  TrackerSender sender(make_mlflow_server(options), options.params, kQuick);
  sender.log(1, one("loss", std::nan("")));
  sender.log(2, one("loss", -std::numeric_limits<double>::infinity()));
  sender.end(TrackerStatus::kFinished);
  ASSERT_EQ(server.points().size(), 2u);
  EXPECT_EQ(server.points()[0]["value"], "NaN");
  EXPECT_EQ(server.points()[1]["value"], "-Infinity");
}

TEST(Mlflow, ARunThatIsNotEndedFailed) {
  const FakeMlflow server;
  {
    const MlflowOptions options = options_for(server.uri());
    TrackerSender sender(make_mlflow_server(options), options.params, kQuick);
    sender.log(1, one("loss", 1));
  }
  EXPECT_EQ(server.status(), "FAILED");
  EXPECT_EQ(server.points().size(), 1u);
}

TEST(Mlflow, CredentialsTravelInTheHeader) {
  const FakeMlflow server;
  MlflowOptions options = options_for(server.uri());
  options.username = "user";
  options.password = "word";
  run_against(options, 1);
  EXPECT_EQ(server.authorization(), "Basic dXNlcjp3b3Jk");
  options.token = "abc";
  run_against(options, 1);
  EXPECT_EQ(server.authorization(), "Bearer abc");
}

TEST(Mlflow, AStatedRunIsContinuedAndAnUnknownOneNamed) {
  const FakeMlflow server;
  MlflowOptions options = options_for(server.uri());
  options.run_id = "r1";
  EXPECT_EQ(run_against(options, 2).sent, 2);
  EXPECT_EQ(server.count("runs/create"), 0u);
  options.run_id = "r2";
  EXPECT_EQ(run_against(options, 2).dropped, 2);
}

TEST(Mlflow, AResumedRunFindsItsRunOnTheSameServerOnly) {
  const TestFolder folder;
  write_mlflow_run({.tracking_uri = "http://a"}, "r1", folder.path());
  MlflowOptions same{.tracking_uri = "http://a", .params = {{"lr", "1"}}};
  continue_mlflow_run(same, folder.path());
  EXPECT_EQ(same.run_id, "r1");
  EXPECT_TRUE(same.params.empty());
  MlflowOptions other{.tracking_uri = "http://b"}, stated{.tracking_uri = "http://a", .run_id = "r9"};
  continue_mlflow_run(other, folder.path());
  continue_mlflow_run(stated, folder.path());
  EXPECT_EQ(other.run_id, "");
  EXPECT_EQ(stated.run_id, "r9");
}

TEST(Mlflow, NamesBecomeOnesThatItTakes) {
  EXPECT_EQ(mlflow_name("router/aux_loss"), "router/aux_loss");
  EXPECT_EQ(mlflow_name("loss/my data (v2).jsonl"), "loss/my data _v2_.jsonl");
  EXPECT_EQ(mlflow_name("loss/../../etc"), "loss/__/__/etc");
  EXPECT_EQ(mlflow_name("/a//b"), "_/a/_/b");
  EXPECT_EQ(mlflow_name("é"), "__");
  EXPECT_EQ(mlflow_name(std::string(400, 'a')).size(), 250u);
  EXPECT_EQ(mlflow_value(std::string(499, 'a') + "é"), std::string(499, 'a'));
}

TEST(Mlflow, RefusesAddressesThatItCannotServe) {
  for (const char* uri : {"sqlite:///mlflow.db", "databricks://profile", "postgresql://h/db", "http://u:p@h:5000",
                          "http://:5000", "https:///path"}) {
    EXPECT_THROW(check_mlflow_uri(uri), UserError) << uri;
  }
  for (const char* uri : {"", "http://h", "https://h:1/p", "file:/tmp/x", "file:///tmp/x", "some/folder", "/abs"}) {
    EXPECT_NO_THROW(check_mlflow_uri(uri)) << uri;
  }
}

TEST(MlflowFolder, HoldsARunAsTheFileStoreDoes) {
  const TestFolder folder;
  MlflowOptions options = options_for("file:" + (folder / "runs"));
  TrackerSender sender(make_mlflow_store(options), options.params, kQuick);
  sender.log(3, one("router/aux_loss", 0.25));
  sender.log(4, one("router/aux_loss", std::nan("")));
  const TrackerCounts counts = sender.end(TrackerStatus::kKilled);
  EXPECT_EQ(counts.sent, 2);
  const std::string id = sender.run_id();
  ASSERT_EQ(id.size(), 32u);
  std::filesystem::path run;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "runs")) run = entry.path() / id;
  const std::string lines = read_text(run / "metrics/router/aux_loss");
  EXPECT_THAT(lines, HasSubstr(" 0.25 3\n"));
  EXPECT_THAT(lines, HasSubstr(" nan 4\n"));
  EXPECT_EQ(read_text(run / "params/lr"), "1e-4");
  const std::string meta = read_text(run / "meta.yaml");
  EXPECT_THAT(meta, testing::AllOf(HasSubstr("status: 5\n"), HasSubstr("run_name: \"one\"\n")));
  EXPECT_THAT(read_text(run.parent_path() / "meta.yaml"), HasSubstr("name: \"fine-tuning\"\n"));
  // The next run uses the same experiment, and continues the given run.
  options.run_id = id;
  options.params = {{"lr", "2"}};
  TrackerSender again(make_mlflow_store(options), options.params, kQuick);
  again.log(5, one("loss", 1));
  again.end(TrackerStatus::kFinished);
  EXPECT_THAT(read_text(run / "meta.yaml"), testing::AllOf(HasSubstr("status: 3\n"), HasSubstr("run_name: \"one\"\n")));
  EXPECT_EQ(read_text(run / "params/lr"), "1e-4");
  EXPECT_THAT(joined(again.take_notices()), HasSubstr("another value of the param lr"));
}

TEST(MlflowFolder, AFolderThatCannotBeWrittenStopsNothing) {
  const TestFolder folder;
  const MlflowOptions options = options_for(folder / "file/runs");
  std::ofstream(folder / "file") << "not a folder";
  TrackerPatience patience = kQuick;
  patience.at_end = milliseconds(100);
  TrackerSender sender(make_mlflow_store(options), options.params, patience);
  sender.log(1, one("loss", 1));
  EXPECT_EQ(sender.end(TrackerStatus::kFinished).dropped, 1);
}

using testing::ElementsAre;
using testing::IsEmpty;

std::optional<double> value_of(const std::vector<Metric>& metrics, const std::string& name) {
  for (const Metric& metric : metrics) {
    if (metric.name == name) return metric.value;
  }
  return std::nullopt;
}

class Proc {
 public:
  Proc() {
    std::filesystem::create_directories(path() + "/net");
    write("/meminfo", "MemTotal:       1000000 kB\nMemFree:  100 kB\nMemAvailable:    250000 kB\n");
    processors(100, 900);
    network(1'000'000, 2'000'000);
  }
  std::string path() const { return folder_.path() + "/proc"; }
  void processors(int busy, int idle) const {
    write("/stat", "cpu  " + std::to_string(busy) + " 0 0 " + std::to_string(idle) + " 0 0 0 0 0 0\ncpu0 1 1 1 1\n");
  }
  void network(int64_t received, int64_t sent) const {
    write("/net/dev",
          "Inter-|   Receive  | Transmit\n face |bytes packets|bytes\n    lo: 77 1 0 0 0 0 0 0 77 1\n  eth0: " +
              std::to_string(received) + " 9 0 0 0 0 0 0 " + std::to_string(sent) + " 8 0\n");
  }

 private:
  void write(const std::string& name, const std::string& text) const { std::ofstream(path() + name) << text; }
  TestFolder folder_;
};

TEST(SystemMetrics, TellsOfProcessorsMemoryDiskAndNetwork) {
  const Proc proc;
  SystemMetrics host(proc.path());
  EXPECT_FALSE(value_of(host.sample(), "cpu_utilization_percentage")) << "no time has passed";
  proc.processors(130, 970);  // 30 of 100 ticks
  proc.network(6'000'000, 2'500'000);
  const std::vector<Metric> metrics = host.sample();
  EXPECT_DOUBLE_EQ(value_of(metrics, "cpu_utilization_percentage").value(), 30);
  EXPECT_DOUBLE_EQ(value_of(metrics, "system_memory_usage_percentage").value(), 75);
  EXPECT_DOUBLE_EQ(value_of(metrics, "system_memory_usage_megabytes").value(), 768);
  EXPECT_DOUBLE_EQ(value_of(metrics, "network_receive_megabytes").value(), 5);
  EXPECT_DOUBLE_EQ(value_of(metrics, "network_transmit_megabytes").value(), 0.5);
  EXPECT_GT(value_of(metrics, "disk_usage_megabytes").value(), 0);
}

TEST(SystemMetrics, LeavesOutWhatCannotBeRead) {
  SystemMetrics host("/nowhere");
  EXPECT_FALSE(value_of(host.sample(), "cpu_utilization_percentage"));
  EXPECT_FALSE(value_of(host.sample(), "system_memory_usage_percentage"));
}

TEST(SystemMetrics, EveryHostIsNamedWhereThereAreSeveral) {
  const auto names = [](const std::vector<std::string>& hosts) {
    std::vector<std::string> list;
    for (const Metric& metric : system_metrics_of(hosts)) list.push_back(metric.name);
    return list;
  };
  const std::string a = packed_metrics("a", {{"x", 1.5}}), b = packed_metrics("b", {{"x", 2}});
  EXPECT_THAT(names({a, ""}), ElementsAre("system/x"));
  EXPECT_THAT(names({a, "", b, ""}), ElementsAre("system/a/x", "system/b/x"));
  EXPECT_THAT(names({a, a}), ElementsAre("system/a/x", "system/a-2/x"));
  EXPECT_THAT(names({"", "{"}), IsEmpty());
  EXPECT_EQ(system_metrics_of({a}).front().value, 1.5);
}

TEST(SystemMetrics, AreAskedForByMlflowsOwnVariables) {
  const char* name = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING";
  for (const auto& [text, wanted] :
       {std::pair{"true", true}, {"True", true}, {"1", true}, {"false", false}, {"", false}}) {
    setenv(name, text, 1);
    EXPECT_EQ(system_metrics_wanted(), wanted) << text;
  }
  unsetenv(name);
  EXPECT_FALSE(system_metrics_wanted());
  EXPECT_EQ(system_metrics_interval(), 10);
  setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.5", 1);
  EXPECT_EQ(system_metrics_interval(), 0.5);
  unsetenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL");
}

}  // namespace
}  // namespace hone
