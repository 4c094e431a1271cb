// The numbers of a run over HTTP while it goes on: for Prometheus, for a browser, for a health check.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/json.h"

namespace hone {

// A small HTTP server for a few texts: GET and HEAD, one request a connection. Everything that a client can make it
// hold or wait for is bounded, which the HTTP library's server does not do: it reads lines of any length, and a client
// that sends a byte now and then keeps a thread of it, and the end of the run, waiting.

struct HttpText {
  std::string body, type;  ///< "text/plain"
};

class HttpResponder {
 public:
  /// What a path is answered with; nothing: 404. Called by the server's thread.
  using Answer = std::function<std::optional<HttpText>(const std::string& path)>;

  /// At most so much: connections (the oldest makes room), bytes of a request's head, seconds of a connection.
  static constexpr size_t kMostClients = 32, kLongestHead = 8192;
  static constexpr double kClientSeconds = 5;

  /// `port` 0: any free one. `host`: an address or name of this machine. std::system_error if the port cannot be had.
  HttpResponder(const std::string& host, int port, Answer answer);
  /// Ends at once, whatever clients do.
  ~HttpResponder();
  HttpResponder(const HttpResponder&) = delete;
  HttpResponder& operator=(const HttpResponder&) = delete;

  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What is told. `metrics` is an object of metrics.jsonl: the last step's, and over it the last evaluation's.
struct ServedStatus {
  std::string run_name;
  std::string state = "training";  ///< training, finished, stopped
  int64_t step = 0, total_steps = 0;
  Json metrics = Json::object();
};

/// Prometheus' text exposition format (version 0.0.4): a gauge hone_<name> for each metric, with characters other than
/// letters, digits and _ replaced by _; hone_run_info and hone_total_steps.
std::string prometheus_text(const ServedStatus& status);

/// Serves GET /metrics (prometheus_text), /health ("ok") and /status (JSON); nothing can be changed through it.
class MetricsServer {
 public:
  /// `port` 0: any free one. `host`: an address of this machine, or 0.0.0.0 for all. std::system_error if the port
  /// cannot be had.
  MetricsServer(const std::string& host, int port);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const;
  /// What requests get from now on. Never waits for a request.
  void publish(const ServedStatus& status);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hone
