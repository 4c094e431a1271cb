// A small HTTP/1.1 server: metrics of a run, and answers of a model. It limits all memory and time that a client can
// use, and one thread serves all clients. (The server of the HTTP library does neither: it reads lines of any length,
// and a client that sends a byte now and then keeps a thread.)
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hone {

struct HttpRequest {
  std::string method, path, query;             ///< the target is path?query, as it was sent
  std::map<std::string, std::string> headers;  ///< by names in lower case; repeated ones are joined by ", "
  std::string body;

  /// Null if there is none. `name` in lower case.
  const std::string* header(std::string_view name) const;
};

/// The answer to one request, from any thread, at once or later. Without one, the client gets 500 when the last copy of
/// the pointer goes. What is sent to a client that has left is lost.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  using Headers = std::vector<std::pair<std::string, std::string>>;

  /// A whole answer.
  virtual void send(int status, std::string_view type, std::string_view body, const Headers& headers = {}) = 0;
  /// An answer in pieces, each on its way at once: begin(), write() as often as there is something, end(). Where the
  /// last copy of the pointer goes before end(), the connection breaks off, and the client knows that a part is
  /// missing.
  virtual void begin(int status, std::string_view type, const Headers& headers = {}) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void end() = 0;
  /// The client has left, or has not read what it asked for: nobody waits for the answer.
  virtual bool gone() const = 0;
};

struct HttpLimits {
  size_t clients = 32;         ///< a further one replaces the oldest that has asked nothing yet, or gets 503
  size_t head = 8192;          ///< bytes of a request line and headers
  size_t body = 0;             ///< bytes of a request's body
  size_t unsent = 1 << 20;     ///< bytes of an answer in pieces that wait for its reader
  double request_seconds = 5;  ///< from a request's first byte, or the connection, to the request's last byte
  double idle_seconds = 5;     ///< between requests of an open connection
  double stalled_seconds = 5;  ///< without progress of an answer that is ready
};

class HttpServer {
 public:
  /// Answers a request, or hands `reply` to a thread that will. Called on the server's thread: it must not wait. GET
  /// serves HEAD as well, whose body is not sent.
  using Handler = std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)>;

  /// `host`: an address or name of this machine. `port` 0: any free one. Throws std::system_error if the port is not
  /// available.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler);
  /// Ends all connections at once, whatever clients do. Replies may outlive it.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the head of a request says of it.
struct HttpHead {
  HttpRequest request;     ///< without a body
  size_t body_bytes = 0;   ///< Content-Length
  bool keep_alive = true;  ///< the client may send a further request
  bool expects_continue = false;
};

/// Reads a head, up to and including its empty line. `refusal`: the status to answer where it is none: 400, 411 for a
/// body of unknown length, 505.
std::optional<HttpHead> parse_http_head(std::string_view text, int& refusal);

/// Whether a Host header names this machine as a browser of its user would: an address, localhost, the machine's name,
/// or the name that is listened on. Any other is a name that
/// somebody has pointed here, whose pages must not read what is served (DNS rebinding).
bool is_own_host(const std::string& header, const std::string& listened_on);

}  // namespace hone
