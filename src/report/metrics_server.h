// Serves the metrics of a running run over HTTP: for Prometheus, a browser, a health check.
#pragma once

#include <memory>
#include <string>

#include "core/text/json_value.h"

namespace hone {

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
