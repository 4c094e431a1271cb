#include "report/metrics_server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <mutex>
#include <set>
#include <system_error>

#include "core/quiet_thread.h"
#include "core/thread_pool.h"

namespace hone {
namespace {

std::string gauge_name(const std::string& metric) {
  std::string name = "hone_" + metric;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 || static_cast<unsigned char>(c) >= 0x80) c = '_';
  }
  return name;
}

/// A label's value: backslash, quote and line end are escaped.
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

/// A metric that is not finite is null in metrics.jsonl, and named in `nonfinite`.
double value_of(const Json& metrics, const std::string& name) {
  if (metrics[name].is_number()) return metrics[name].get<double>();
  const std::string what = metrics.contains("nonfinite") ? metrics["nonfinite"].value(name, "NaN") : "NaN";
  return what == "Infinity" ? INFINITY : what == "-Infinity" ? -INFINITY : NAN;
}

/// httplib::Server ignores SIGPIPE for the whole program, which is the program's to decide.
std::unique_ptr<httplib::Server> make_server() {
  struct sigaction before {};
  sigaction(SIGPIPE, nullptr, &before);
  auto server = std::make_unique<httplib::Server>();
  sigaction(SIGPIPE, &before, nullptr);
  return server;
}

}  // namespace

std::string prometheus_text(const ServedStatus& status) {
  std::string text = fmt::format(
      "# HELP hone_run_info The run's name and state; always 1.\n# TYPE hone_run_info gauge\n"
      "hone_run_info{{run=\"{}\",state=\"{}\",version=\"{}\"}} 1\n"
      "# HELP hone_total_steps Optimizer steps of the whole run.\n# TYPE hone_total_steps gauge\nhone_total_steps {}\n",
      label(status.run_name), label(status.state), HONE_VERSION, status.total_steps);
  std::set<std::string> written = {"hone_run_info", "hone_total_steps"};
  for (const auto& [name, value] : status.metrics.items()) {
    const std::string gauge = gauge_name(name);
    if (!(value.is_number() || value.is_null()) || !written.insert(gauge).second) continue;
    text += fmt::format("# HELP {0} {1} of the last step or evaluation.\n# TYPE {0} gauge\n{0} {2}\n", gauge,
                        label(name), number(value_of(status.metrics, name)));
  }
  return text;
}

struct MetricsServer::Impl {
  std::unique_ptr<httplib::Server> server = make_server();
  int port = 0;
  std::thread thread;
  std::atomic<bool> ended = false;  // the thread does not listen any more
  std::mutex mutex;
  std::string metrics, status = "{}";  // guarded by the mutex

  void serve(const char* path, std::string Impl::*text, const char* type) {
    server->Get(path, [=, this](const httplib::Request&, httplib::Response& response) {
      const std::lock_guard lock(mutex);
      response.set_content(this->*text, type);
    });
  }
};

MetricsServer::MetricsServer(const std::string& host, int port) : impl_(std::make_unique<Impl>()) {
  httplib::Server& server = *impl_->server;
  // A client that is slow keeps one of the two threads waiting for seconds, and the run not at all.
  server.new_task_queue = [] { return new httplib::ThreadPool(2); };
  server.set_read_timeout(2);
  server.set_write_timeout(2);
  server.set_keep_alive_timeout(2);
  server.set_payload_max_length(4096);
  // Not SO_REUSEPORT, with which two runs would share a port and answer in turn.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  impl_->serve("/metrics", &Impl::metrics, "text/plain; version=0.0.4");
  impl_->serve("/status", &Impl::status, "application/json");
  server.Get("/health",
             [](const httplib::Request&, httplib::Response& response) { response.set_content("ok\n", "text/plain"); });
  errno = 0;
  if (port == 0) {
    impl_->port = server.bind_to_any_port(host);
  } else {
    impl_->port = server.bind_to_port(host, port) ? port : -1;
  }
  if (impl_->port < 0) {
    const int error = errno == 0 ? EADDRNOTAVAIL : errno;
    throw std::system_error(error, std::generic_category(), fmt::format("no server on {}:{}", host, port));
  }
  impl_->thread = quiet_thread([this] {
    impl_->server->listen_after_bind();
    impl_->ended = true;
  });
}

MetricsServer::~MetricsServer() {
  // stop() does nothing before the thread has come to listen.
  while (!impl_->server->is_running() && !impl_->ended) std::this_thread::yield();
  impl_->server->stop();
  impl_->thread.join();
}

int MetricsServer::port() const { return impl_->port; }

void MetricsServer::publish(const ServedStatus& status) {
  const Json json = {{"run_name", status.run_name},       {"state", status.state},   {"step", status.step},
                     {"total_steps", status.total_steps}, {"version", HONE_VERSION}, {"metrics", status.metrics}};
  std::string metrics = prometheus_text(status);
  std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(impl_->mutex);
  impl_->metrics = std::move(metrics);
  impl_->status = std::move(text);
}

}  // namespace hone
