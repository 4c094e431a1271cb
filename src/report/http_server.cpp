#include "report/http_server.h"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/base/printable.h"
#include "core/base/quiet_thread.h"
#include "core/files/descriptor.h"

namespace hone {

const std::string* HttpRequest::header(std::string_view name) const {
  const auto found = headers.find(std::string(name));
  return found == headers.end() ? nullptr : &found->second;
}

namespace {

constexpr std::string_view kBlank = " \t";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

/// The characters of a method and of a header's name (RFC 9110, 5.6.2).
bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    const bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    return alphanumeric || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool is_visible(std::string_view text, bool blanks) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return static_cast<unsigned char>(c) > ' ' ? c != 0x7f : blanks && kBlank.find(c) != std::string_view::npos;
  });
}

/// Takes the next line, which ends in LF or CRLF.
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

bool has_word(const std::string* header, std::string_view word) {
  return header != nullptr && in_lower_case(*header).find(word) != std::string::npos;
}

/// Where a head ends: after its empty line. npos: it goes on.
size_t end_of_head(std::string_view text) {
  const size_t crlf = text.find("\r\n\r\n"), lf = text.find("\n\n");
  return std::min(crlf == std::string_view::npos ? crlf : crlf + 4, lf == std::string_view::npos ? lf : lf + 2);
}

}  // namespace

std::optional<HttpHead> parse_http_head(std::string_view text, int& refusal) {
  refusal = 400;
  HttpHead head;
  HttpRequest& request = head.request;
  const std::string_view line = take_line(text);
  const size_t first = line.find(' '), second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const std::string_view target = line.substr(first + 1, second - first - 1), version = line.substr(second + 1);
  if (!version.starts_with("HTTP/")) return std::nullopt;
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return refusal = 505, std::nullopt;
  request.method = line.substr(0, first);
  if (!is_token(request.method) || !target.starts_with('/') || !is_visible(target, false)) return std::nullopt;
  request.path = target.substr(0, target.find('?'));
  if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
  while (true) {
    const std::string_view field = take_line(text);
    if (field.empty()) break;
    const size_t colon = field.find(':');
    if (colon == std::string_view::npos || !is_token(field.substr(0, colon))) return std::nullopt;
    const std::string_view value = trimmed(field.substr(colon + 1));
    if (!is_visible(value, true)) return std::nullopt;
    const auto [at, is_new] = request.headers.try_emplace(in_lower_case(std::string(field.substr(0, colon))), value);
    if (!is_new) at->second.append(", ").append(value);
  }
  if (request.header("transfer-encoding") != nullptr) return refusal = 411, std::nullopt;
  if (const std::string* length = request.header("content-length")) {
    const char* const end = length->data() + length->size();
    const auto [stop, error] = std::from_chars(length->data(), end, head.body_bytes);
    if (error != std::errc() || stop != end || length->empty()) return std::nullopt;
  }
  const std::string* connection = request.header("connection");
  head.keep_alive = version == "HTTP/1.1" ? !has_word(connection, "close") : has_word(connection, "keep-alive");
  head.expects_continue = has_word(request.header("expect"), "100-continue");
  return head;
}

bool is_own_host(const std::string& header, const std::string& listened_on) {
  std::string name = in_lower_case(header);
  const size_t bracket = name.find(']'), colon = name.find(':', bracket == std::string::npos ? 0 : bracket);
  if (name.starts_with('[') && bracket != std::string::npos) {
    name = name.substr(1, bracket - 1);
  } else if (colon != std::string::npos) {
    name = name.substr(0, colon);
  }
  unsigned char address[sizeof(in6_addr)];
  if (::inet_pton(AF_INET, name.c_str(), address) == 1 || ::inet_pton(AF_INET6, name.c_str(), address) == 1)
    return true;
  char machine[256] = {};
  ::gethostname(machine, sizeof machine - 1);
  return name == "localhost" ||
         (!name.empty() && (name == in_lower_case(machine) || name == in_lower_case(listened_on)));
}

namespace {

using ServerClock = std::chrono::steady_clock;

ServerClock::time_point after(double seconds) {
  return ServerClock::now() + std::chrono::duration_cast<ServerClock::duration>(std::chrono::duration<double>(seconds));
}

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

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Answer";
  }
}

/// The status line and headers of an answer of `bytes` bytes, or of chunks.
std::string head_of(int status, std::string_view type, std::optional<size_t> bytes, bool keep_alive,
                    const HttpReply::Headers& headers) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", status, reason_of(status), type);
  for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  text += bytes ? fmt::format("Content-Length: {}\r\n", *bytes) : "Transfer-Encoding: chunked\r\n";
  text += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return text;
}

/// What an answer has become so far, between its writer and the server's thread.
struct Outbox {
  std::mutex mutex;
  std::string unsent;   // bytes for the client
  bool ended = false;   // nothing follows
  bool broken = false;  // the writer gave up
  bool gone = false;    // nobody reads
};

class Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<Outbox> outbox, std::shared_ptr<Descriptor> wake, bool keep_alive, bool head_only,
        size_t most_unsent)
      : outbox_(std::move(outbox)),
        wake_(std::move(wake)),
        keep_alive_(keep_alive),
        head_only_(head_only),
        most_unsent_(most_unsent) {}
  ~Reply() override {
    if (!begun_) Reply::send(500, "text/plain", "500 Internal Server Error\n", {});
    if (ended_) return;
    const std::lock_guard lock(outbox_->mutex);
    outbox_->broken = true;
    wake();
  }
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  void send(int status, std::string_view type, std::string_view body, const Headers& headers) override {
    std::string text = head_of(status, type, body.size(), keep_alive_, headers);
    if (!head_only_) text += body;
    put(text, true);
  }
  void begin(int status, std::string_view type, const Headers& headers) override {
    put(head_of(status, type, std::nullopt, keep_alive_, headers), false);
  }
  void write(std::string_view piece) override {
    if (!piece.empty() && !head_only_) put(fmt::format("{:x}\r\n{}\r\n", piece.size(), piece), false);
  }
  void end() override { put(head_only_ ? "" : "0\r\n\r\n", true); }
  bool gone() const override {
    const std::lock_guard lock(outbox_->mutex);
    return outbox_->gone;
  }

 private:
  void put(std::string_view bytes, bool last) {
    const std::lock_guard lock(outbox_->mutex);
    // A whole answer may have any size; pieces that nobody reads end at the limit.
    if (begun_ && outbox_->unsent.size() + bytes.size() > most_unsent_) outbox_->gone = true;
    begun_ = true;
    ended_ |= last;
    outbox_->ended |= last;
    if (!outbox_->gone) outbox_->unsent += bytes;
    wake();
  }
  void wake() const {
    const uint64_t one = 1;
    (void)!::write(wake_->descriptor(), &one, sizeof one);
  }

  const std::shared_ptr<Outbox> outbox_;
  const std::shared_ptr<Descriptor> wake_;
  const bool keep_alive_, head_only_;
  const size_t most_unsent_;
  bool begun_ = false, ended_ = false;
};

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/// One connection: reads a request, sends its answer, and reads the next. After the last one it discards further input
/// until the client closes: closing a connection with unread input would discard the answer that is on its way.
class Connection {
 public:
  Connection(int socket, const HttpLimits& limits, const HttpServer::Handler& handler,
             const std::shared_ptr<Descriptor>& wake)
      : socket_(socket), limits_(limits), handler_(handler), wake_(wake), end_(after(limits.request_seconds)) {}
  ~Connection() {
    if (!outbox_) return;
    const std::lock_guard lock(outbox_->mutex);
    outbox_->gone = true;
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int descriptor() const { return socket_.descriptor(); }
  bool answering() const { return state_ == State::kAnswering; }
  short events() {
    if (state_ != State::kAnswering) return POLLIN;
    return static_cast<short>(POLLRDHUP | (take() ? POLLOUT : 0));
  }

  /// Reads and writes without waiting; returns false when the connection is finished.
  bool serve(short events) {
    if (state_ == State::kReading) {
      if (events != 0 && !read()) return false;
      if (state_ == State::kReading && ServerClock::now() >= end_) {
        if (input_.empty()) return false;
        refuse(408);
      }
    }
    if (state_ == State::kAnswering && !answer(events)) return false;
    if (state_ == State::kDraining) return (events == 0 || drain()) && ServerClock::now() < end_;
    return true;
  }

 private:
  enum class State { kReading, kAnswering, kDraining };
  static constexpr size_t kMostDrained = size_t{256} << 10;

  bool read() {
    std::array<char, 16384> chunk;
    const ssize_t count = ::recv(descriptor(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (count <= 0) return count < 0 && would_wait();
    if (input_.empty()) end_ = after(limits_.request_seconds);
    input_.append(chunk.data(), static_cast<size_t>(count));
    look();
    return true;
  }

  /// Answers the request at the start of the input once it is whole.
  void look() {
    if (!head_) {
      const size_t end = end_of_head(std::string_view(input_).substr(0, limits_.head + 1));
      if (end == std::string_view::npos || end > limits_.head) {
        if (input_.size() > limits_.head) refuse(431);
        return;
      }
      int refusal = 0;
      head_ = parse_http_head(std::string_view(input_).substr(0, end), refusal);
      if (!head_) return refuse(refusal);
      if (head_->body_bytes > limits_.body) return refuse(limits_.body == 0 ? 404 : 413);
      input_.erase(0, end);
      if (head_->expects_continue && input_.empty() && head_->body_bytes > 0) {
        constexpr std::string_view kGoOn = "HTTP/1.1 100 Continue\r\n\r\n";
        (void)::send(descriptor(), kGoOn.data(), kGoOn.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      }
    }
    if (input_.size() < head_->body_bytes) return;
    HttpHead head = std::move(*head_);
    head_.reset();
    head.request.body = input_.substr(0, head.body_bytes);
    input_.erase(0, head.body_bytes);
    const bool head_only = head.request.method == "HEAD";
    if (head_only) head.request.method = "GET";
    begin(head.keep_alive);
    auto reply = std::make_shared<Reply>(outbox_, wake_, head.keep_alive, head_only, limits_.unsent);
    handler_(std::move(head.request), std::move(reply));
  }

  /// The connection ends with this answer: what follows on it cannot be understood.
  void refuse(int status) {
    begin(false);
    Reply(outbox_, wake_, false, false, limits_.unsent)
        .send(status, "text/plain", fmt::format("{} {}\n", status, reason_of(status)), {});
  }

  void begin(bool keep_alive) {
    outbox_ = std::make_shared<Outbox>();
    keep_alive_ = keep_alive;
    state_ = State::kAnswering;
    output_.clear();
    sent_ = 0;
    end_ = after(limits_.stalled_seconds);
  }

  /// Takes what the writer has put; returns whether there is anything to send or to end.
  bool take() {
    const std::lock_guard lock(outbox_->mutex);
    if (sent_ == output_.size()) {
      output_ = std::exchange(outbox_->unsent, {});
      sent_ = 0;
    }
    return sent_ < output_.size() || outbox_->ended || outbox_->broken || outbox_->gone;
  }

  bool answer(short events) {
    const bool ready = take();
    if ((events & (POLLRDHUP | POLLHUP | POLLERR)) != 0 && !ready) return false;
    if (!ready) {
      end_ = after(limits_.stalled_seconds);  // the writer takes its time
      return true;
    }
    while (sent_ < output_.size()) {
      const ssize_t count =
          ::send(descriptor(), output_.data() + sent_, output_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count <= 0) return count < 0 && would_wait() && ServerClock::now() < end_;
      sent_ += static_cast<size_t>(count);
      end_ = after(limits_.stalled_seconds);
    }
    {
      const std::lock_guard lock(outbox_->mutex);
      if (!outbox_->unsent.empty()) return true;
      if (outbox_->broken || outbox_->gone) return false;
      if (!outbox_->ended) return true;
    }
    outbox_.reset();
    if (keep_alive_) {
      state_ = State::kReading;
      end_ = after(input_.empty() ? limits_.idle_seconds : limits_.request_seconds);
      if (!input_.empty()) look();
      return true;
    }
    ::shutdown(descriptor(), SHUT_WR);
    state_ = State::kDraining;
    end_ = after(limits_.stalled_seconds);
    return true;
  }

  bool drain() {
    std::array<char, 4096> chunk;
    const ssize_t count = ::recv(descriptor(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (count <= 0) return count < 0 && would_wait();
    drained_ += static_cast<size_t>(count);
    return drained_ <= kMostDrained;
  }

  const Descriptor socket_;
  const HttpLimits& limits_;
  const HttpServer::Handler& handler_;
  const std::shared_ptr<Descriptor>& wake_;
  ServerClock::time_point end_;  // when the state must have made progress
  State state_ = State::kReading;
  std::string input_, output_;
  std::optional<HttpHead> head_;    // belongs to a request whose body is still read
  std::shared_ptr<Outbox> outbox_;  // while answering
  bool keep_alive_ = false;
  size_t sent_ = 0, drained_ = 0;
};

}  // namespace

struct HttpServer::Impl {
  Impl(const std::string& host, int wanted, const HttpLimits& most, Handler answer)
      : limits(most),
        handler(std::move(answer)),
        listener(listen_at(host, wanted)),
        port(port_of(listener.descriptor())) {
    thread = quiet_thread([this] { serve(); });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    const uint64_t one = 1;
    (void)!::write(wake->descriptor(), &one, sizeof one);
    thread.join();
  }

  void serve() {
    constexpr int kMillisecondsBetweenLooks = 200;  // to find expired connections
    while (true) {
      std::vector<pollfd> entries = {{wake->descriptor(), POLLIN, 0}, {listener.descriptor(), POLLIN, 0}};
      for (Connection& client : clients) entries.push_back({client.descriptor(), client.events(), 0});
      ::poll(entries.data(), entries.size(), clients.empty() ? -1 : kMillisecondsBetweenLooks);
      uint64_t woken = 0;
      if (entries[0].revents != 0) (void)!::read(wake->descriptor(), &woken, sizeof woken);
      {
        const std::lock_guard lock(mutex);
        if (ending) return clients.clear();
      }
      size_t entry = 2;
      for (auto client = clients.begin(); client != clients.end(); ++entry) {
        client = client->serve(entries[entry].revents) ? std::next(client) : clients.erase(client);
      }
      if (entries[1].revents != 0) let_in();
    }
  }

  void let_in() {
    const int socket = ::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    const bool no_descriptors = socket < 0 && (errno == EMFILE || errno == ENFILE);
    if (clients.size() == limits.clients || (no_descriptors && !clients.empty())) {
      const auto oldest =
          std::find_if(clients.begin(), clients.end(), [](const Connection& client) { return !client.answering(); });
      if (oldest != clients.end()) {
        clients.erase(oldest);
      } else if (socket >= 0) {
        constexpr std::string_view kFull =
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        (void)::send(socket, kFull.data(), kFull.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        ::close(socket);
        return;
      }
    }
    if (socket >= 0) {
      const int yes = 1;  // the pieces of an answer are small
      setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      clients.emplace_back(socket, limits, handler, wake);
    }
    if (no_descriptors) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

  const HttpLimits limits;
  const Handler handler;
  const Descriptor listener;
  const std::shared_ptr<Descriptor> wake =
      std::make_shared<Descriptor>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));  // replies may outlive this
  const int port;
  std::list<Connection> clients;  // the oldest first
  std::mutex mutex;
  bool ending = false;  // guarded by the mutex
  std::thread thread;
};

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler)
    : impl_(std::make_unique<Impl>(host, port, limits, std::move(handler))) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return impl_->port; }

}  // namespace hone
