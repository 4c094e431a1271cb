// Serves the metrics of a running run over HTTP: for Prometheus, a browser, a health check.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/text/json_value.h"

namespace hone {

// A small HTTP server for a few texts: GET and HEAD, one request per connection. It limits all memory and time that a
// client can use. The server of the HTTP library does not: it reads lines of any length, and a client that sends a byte
// now and then blocks one of its threads, and the end of the run.

struct HttpText {
  std::string body, type;  ///< "text/plain"
};

class HttpResponder {
 public:
  /// Returns the answer for a path; nothing: 404. Called on the server's thread.
  using Answer = std::function<std::optional<HttpText>(const std::string& path)>;

  /// Limits: connections (a new one replaces the oldest), bytes of a request's head, seconds of a connection.
  static constexpr size_t kMostClients = 32, kLongestHead = 8192;
  static constexpr double kClientSeconds = 5;

  /// `port` 0: any free one. `host`: an address or name of this machine. Throws std::system_error if the port is not
  /// available.
  HttpResponder(const std::string& host, int port, Answer answer);
  /// Stops at once, whatever clients do.
  ~HttpResponder();
  HttpResponder(const HttpResponder&) = delete;
  HttpResponder& operator=(const HttpResponder&) = delete;

  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The published status. `metrics` is an object of metrics.jsonl: the last step's, merged with the last evaluation's.
struct ServedStatus {
  std::string run_name;
  std::string state = "training";  ///< training, finished, stopped
  int64_t step = 0, total_steps = 0;
  JsonObject metrics = {};
};

/// Prometheus' text exposition format (version 0.0.4): a gauge hone_<name> for each metric, with characters other than
/// letters, digits and _ replaced by _; also hone_run_info and hone_total_steps.
std::string prometheus_text(const ServedStatus& status);

/// Serves GET /metrics (prometheus_text), /health ("ok") and /status (JSON); read-only.
class MetricsServer {
 public:
  /// `port` 0: any free one. `host`: an address of this machine, or 0.0.0.0 for all. Throws std::system_error if the
  /// port is not available.
  MetricsServer(const std::string& host, int port);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const;
  /// Sets the answers to later requests. Never waits for a request.
  void publish(const ServedStatus& status);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hone
