// TCP between the hosts of a run: connections, and messages of a type and some bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hone {

/// A file descriptor of a connection or a listener, closed at the end.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int descriptor() const { return descriptor_; }
  bool open() const { return descriptor_ >= 0; }
  void close();

 private:
  int descriptor_ = -1;
};

/// A connection to host:port over IPv4 or IPv6; not open, with the reason in `problem`, where there is none in
/// `seconds`.
Socket connect_to(const std::string& host, int port, double seconds, std::string& problem);
/// Listens at `port` for the ranks that know this host as `host`: on the loopback only if that is its name, otherwise
/// on all addresses. Not open, with the reason, if the port cannot be had.
Socket listen_at(const std::string& host, int port, std::string& problem);
/// Whether it names this host's loopback.
bool is_loopback(const std::string& host);
/// The address at the other end of a connection, in numbers; "" if it has ended.
std::string peer_address(const Socket& socket);
/// The port at which a listener that was given port 0 listens.
int port_of(const Socket& listener);
/// The next connection, or one that is not open after `seconds`.
Socket accept_from(const Socket& listener, double seconds);

struct Message {
  uint8_t type = 0;
  std::string bytes;
};

/// Messages longer than this are refused: nothing that ranks say to each other comes near.
constexpr uint32_t kLongestMessage = uint32_t{256} << 20;

/// Sends all of it; false if the connection has ended, or takes nothing for ten seconds.
bool send_message(const Socket& socket, uint8_t type, std::string_view bytes);

/// Messages out of the bytes of a connection.
class MessageReader {
 public:
  enum class State { kOpen, kClosed };

  /// Takes what has arrived, without waiting. kClosed at the end of the connection, or if it says what is no message.
  State read(const Socket& socket);
  /// The next whole message.
  std::optional<Message> next();
  /// Whether what was read is no message, and nothing more will come.
  bool broken() const { return broken_; }
  /// Who says a longer message than this is no rank.
  void set_longest(uint32_t bytes) { longest_ = bytes; }

 private:
  std::string buffer_;
  uint32_t longest_ = kLongestMessage;
  bool broken_ = false;
};

/// Waits for one message; nothing if none comes in `seconds` or the connection ends.
std::optional<Message> receive_message(const Socket& socket, MessageReader& reader, double seconds);

}  // namespace hone
