#include "report/metrics_server.h"

#include <fmt/format.h>

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/program.h"
#include "core/base/quiet_thread.h"
#include "core/files/descriptor.h"
#include "core/text/json.h"

namespace hone {
namespace {

using ServerClock = std::chrono::steady_clock;

[[noreturn]] void throw_no_server(int error, const std::string& host, int port) {
  throw std::system_error(error == 0 ? EADDRNOTAVAIL : error, std::generic_category(),
                          fmt::format("no server on {}:{}", host, port));
}

int listen_at(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) throw_no_server(0, host, port);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  int error = 0;
  for (const addrinfo* address = found; address; address = address->ai_next) {
    const int listener =
        ::socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol);
    // Not SO_REUSEPORT, with which two runs would share a port and answer alternately.
    const int yes = 1;
    if (listener >= 0) setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (listener >= 0 && ::bind(listener, address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(listener, SOMAXCONN) == 0) {
      return listener;
    }
    error = errno;
    if (listener >= 0) ::close(listener);
  }
  throw_no_server(error, host, port);
}

int port_of(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string response(const char* status, const HttpText& text, bool with_body) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
                     text.type, text.body.size(), with_body ? text.body : "");
}

std::string plain(const char* status) { return response(status, {std::string(status) + "\n", "text/plain"}, true); }

/// One connection: reads the head of a request, sends the answer, and discards further input until the client closes.
/// Closing a connection with unread input would discard the answer that the client has not read.
class Client {
 public:
  explicit Client(int socket)
      : socket_(socket),
        end_(ServerClock::now() + std::chrono::duration_cast<ServerClock::duration>(
                                      std::chrono::duration<double>(HttpResponder::kClientSeconds))) {}

  int descriptor() const { return socket_.descriptor(); }
  short events() const { return static_cast<short>(state_ == State::kSending ? POLLOUT : POLLIN); }
  bool expired() const { return ServerClock::now() >= end_; }

  /// Reads and writes without waiting; returns false when the connection is finished.
  bool serve(const HttpResponder::Answer& answer) {
    if (state_ == State::kReading && !read(answer)) return false;
    if (state_ == State::kSending && !send()) return false;
    return state_ != State::kDraining || drain();
  }

 private:
  enum class State { kReading, kSending, kDraining };
  static constexpr size_t kMostDrained = size_t{256} << 10;

  static bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

  bool read(const HttpResponder::Answer& answer) {
    std::array<char, 2048> chunk;
    const ssize_t count = ::recv(socket_.descriptor(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (count <= 0) return count < 0 && would_wait();
    head_.append(chunk.data(), static_cast<size_t>(count));
    const bool whole = head_.find("\r\n\r\n") != std::string::npos || head_.find("\n\n") != std::string::npos;
    if (!whole && head_.size() <= HttpResponder::kLongestHead) return true;
    answer_ = whole ? answer_to(answer) : plain("431 Request Header Fields Too Large");
    state_ = State::kSending;
    return true;
  }

  std::string answer_to(const HttpResponder::Answer& answer) const {
    const std::string line = head_.substr(0, head_.find_first_of("\r\n"));
    const size_t first = line.find(' '), second = line.find(' ', first + 1);
    if (first == std::string::npos || second == std::string::npos || !line.substr(second).starts_with(" HTTP/")) {
      return plain("400 Bad Request");
    }
    const std::string method = line.substr(0, first), target = line.substr(first + 1, second - first - 1);
    const std::optional<HttpText> text =
        method == "GET" || method == "HEAD" ? answer(target.substr(0, target.find('?'))) : std::nullopt;
    return text ? response("200 OK", *text, method == "GET") : plain("404 Not Found");
  }

  bool send() {
    while (sent_ < answer_.size()) {
      const ssize_t count =
          ::send(socket_.descriptor(), answer_.data() + sent_, answer_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count <= 0) return count < 0 && would_wait();
      sent_ += static_cast<size_t>(count);
    }
    ::shutdown(socket_.descriptor(), SHUT_WR);
    state_ = State::kDraining;
    return true;
  }

  bool drain() {
    std::array<char, 4096> chunk;
    const ssize_t count = ::recv(socket_.descriptor(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (count <= 0) return count < 0 && would_wait();
    drained_ += static_cast<size_t>(count);
    return drained_ <= kMostDrained;
  }

  const Descriptor socket_;
  const ServerClock::time_point end_;
  State state_ = State::kReading;
  std::string head_, answer_;
  size_t sent_ = 0, drained_ = 0;
};

}  // namespace

struct HttpResponder::Impl {
  Impl(const std::string& host, int wanted, Answer texts)
      : listener(listen_at(host, wanted)), port(port_of(listener.descriptor())), answer(std::move(texts)) {
    thread = quiet_thread([this] { serve(); });
  }
  ~Impl() {
    const uint64_t one = 1;
    (void)!::write(wake.descriptor(), &one, sizeof one);
    thread.join();
  }

  void serve() {
    constexpr int kMillisecondsBetweenLooks = 200;  // to find expired connections
    while (true) {
      std::vector<pollfd> entries = {{wake.descriptor(), POLLIN, 0}, {listener.descriptor(), POLLIN, 0}};
      for (const Client& client : clients) entries.push_back({client.descriptor(), client.events(), 0});
      ::poll(entries.data(), entries.size(), clients.empty() ? -1 : kMillisecondsBetweenLooks);
      if (entries[0].revents != 0) return;
      size_t entry = 2;
      for (auto client = clients.begin(); client != clients.end(); ++entry) {
        const bool stays = !client->expired() && (entries[entry].revents == 0 || client->serve(answer));
        client = stays ? std::next(client) : clients.erase(client);
      }
      if (entries[1].revents != 0) let_in();
    }
  }

  void let_in() {
    const int socket = ::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    const bool no_descriptors = socket < 0 && (errno == EMFILE || errno == ENFILE);
    if (clients.size() == kMostClients || (no_descriptors && !clients.empty())) clients.pop_front();
    if (socket >= 0) clients.emplace_back(socket);
    if (no_descriptors) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

  const Descriptor listener;
  const Descriptor wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  const int port;
  const Answer answer;
  std::list<Client> clients;  // the oldest first
  std::thread thread;
};

HttpResponder::HttpResponder(const std::string& host, int port, Answer answer)
    : impl_(std::make_unique<Impl>(host, port, std::move(answer))) {}
HttpResponder::~HttpResponder() = default;
int HttpResponder::port() const { return impl_->port; }

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
      : responder(host, port, [this](const std::string& path) { return answer(path); }) {}

  std::optional<HttpText> answer(const std::string& path) {
    const std::lock_guard lock(mutex);
    if (path == "/metrics") return HttpText{metrics, "text/plain; version=0.0.4"};
    if (path == "/status") return HttpText{status, "application/json"};
    if (path == "/health") return HttpText{"ok\n", "text/plain"};
    return std::nullopt;
  }

  std::mutex mutex;
  std::string metrics, status = "{}";  // guarded by the mutex
  HttpResponder responder;
};

MetricsServer::MetricsServer(const std::string& host, int port) : impl_(std::make_unique<Impl>(host, port)) {}
MetricsServer::~MetricsServer() = default;

int MetricsServer::port() const { return impl_->responder.port(); }

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
