#include "report/metrics_server.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <mutex>
#include <set>

#include "core/base/program.h"
#include "core/text/json.h"
#include "report/http_server.h"

namespace hone {
namespace {

std::string gauge_name(const std::string& metric) {
  std::string name = "hone_" + metric;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 || static_cast<unsigned char>(c) >= 0x80) c = '_';
  }
  return name;
}

/// The value of a label: escapes backslash, quote and line end.
std::string label(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? "\\n" : std::string(1, c);
  }
  return escaped;
}

std::string number(double value) {
  return std::isnan(value) ? "NaN" : std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf") : fmt::format("{}", value);
}

/// A metric that is not finite is null in metrics.jsonl, and listed in `nonfinite`.
double value_of(const Json& metrics, const std::string& name) {
  if (metrics[name].is_number()) return metrics[name].get<double>();
  const std::string what = metrics.contains("nonfinite") ? metrics["nonfinite"].value(name, "NaN") : "NaN";
  return what == "Infinity" ? INFINITY : what == "-Infinity" ? -INFINITY : NAN;
}

}  // namespace

std::string prometheus_text(const ServedStatus& status) {
  std::string text = fmt::format(
      "# HELP hone_run_info The run's name and state; always 1.\n# TYPE hone_run_info gauge\n"
      "hone_run_info{{run=\"{}\",state=\"{}\",version=\"{}\"}} 1\n"
      "# HELP hone_total_steps Optimizer steps of the whole run.\n# TYPE hone_total_steps gauge\nhone_total_steps {}\n",
      label(status.run_name), label(status.state), version(), status.total_steps);
  std::set<std::string> written = {"hone_run_info", "hone_total_steps"};
  for (const auto& [name, value] : status.metrics->items()) {
    const std::string gauge = gauge_name(name);
    if (!(value.is_number() || value.is_null()) || !written.insert(gauge).second) continue;
    text += fmt::format("# HELP {0} {1} of the last step or evaluation.\n# TYPE {0} gauge\n{0} {2}\n", gauge,
                        label(name), number(value_of(status.metrics, name)));
  }
  return text;
}

struct MetricsServer::Impl {
  Impl(const std::string& host, int port)
      : server(host, port, {}, [this](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
          answer(request, *reply);
        }) {}

  void answer(const HttpRequest& request, HttpReply& reply) {
    const std::lock_guard lock(mutex);
    const std::string& path = request.path;
    if (request.method != "GET") return reply.send(404, "text/plain", "404 Not Found\n");
    if (path == "/metrics") return reply.send(200, "text/plain; version=0.0.4", metrics);
    if (path == "/status") return reply.send(200, "application/json", status);
    if (path == "/health") return reply.send(200, "text/plain", "ok\n");
    reply.send(404, "text/plain", "404 Not Found\n");
  }

  std::mutex mutex;
  std::string metrics, status = "{}";  // guarded by the mutex
  HttpServer server;                   // the last: its thread reads the others
};

MetricsServer::MetricsServer(const std::string& host, int port) : impl_(std::make_unique<Impl>(host, port)) {}
MetricsServer::~MetricsServer() = default;

int MetricsServer::port() const { return impl_->server.port(); }

void MetricsServer::publish(const ServedStatus& status) {
  const Json json = {{"run_name", status.run_name},       {"state", status.state}, {"step", status.step},
                     {"total_steps", status.total_steps}, {"version", version()},  {"metrics", status.metrics}};
  std::string metrics = prometheus_text(status);
  std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(impl_->mutex);
  impl_->metrics = std::move(metrics);
  impl_->status = std::move(text);
}

}  // namespace hone
