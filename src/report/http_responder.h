// A small HTTP server for a few texts: GET and HEAD, one request a connection. Everything that a client can make it
// hold or wait for is bounded, which the HTTP library's server does not do: it reads lines of any length, and a client
// that sends a byte now and then keeps a thread of it, and the end of the run, waiting.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace hone {

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

}  // namespace hone
