// A client of which tests say each byte.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace hone {

/// A connection, and the bytes that come back.
struct Stranger {
  explicit Stranger(int port) {
    const sockaddr_in address{AF_INET, htons(static_cast<uint16_t>(port)), {htonl(INADDR_LOOPBACK)}, {}};
    EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const timeval most{10, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  }
  ~Stranger() { ::close(socket); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  bool say(std::string_view text) const { return ::send(socket, text.data(), text.size(), MSG_NOSIGNAL) > 0; }
  /// Until the server closes, or `end` has come.
  std::string hear(std::string_view end = "") const {
    std::string all;
    char buffer[4096];
    while (end.empty() || all.find(end) == std::string::npos) {
      const ssize_t count = ::recv(socket, buffer, sizeof buffer, 0);
      if (count <= 0) break;
      all.append(buffer, static_cast<size_t>(count));
    }
    return all;
  }
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
};

}  // namespace hone
