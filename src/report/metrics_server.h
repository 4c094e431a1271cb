// The numbers of a run over HTTP while it goes on: for Prometheus, for a browser, for a health check.
#pragma once

#include <memory>
#include <string>

#include "core/json.h"

namespace hone {

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
