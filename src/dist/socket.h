// TCP between the hosts of a run: connections, deadlines, and messages of a type and some bytes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hone {

class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  /// Seconds, from 0.
  double left() const { return std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count()); }
  bool passed() const { return left() == 0; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

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
/// Waits until one of the descriptors can be read or has ended, at most `seconds`.
void wait_to_read(const std::vector<int>& descriptors, double seconds);

struct Message {
  uint8_t type = 0;
  std::string bytes;
};

/// Messages longer than this are refused: nothing that ranks say to each other comes near.
constexpr uint32_t kLongestMessage = uint32_t{256} << 20;
/// Bytes before a message: its type and its length.
constexpr size_t kMessageHead = 5;

/// Sends all of it; false if the connection has ended, or takes nothing for ten seconds.
bool send_message(const Socket& socket, uint8_t type, std::string_view bytes);

/// Messages out of the bytes of a connection.
class MessageReader {
 public:
  enum class State { kOpen, kClosed };

  /// Takes what has arrived of one message, without waiting: what comes after it stays in the kernel until next() has
  /// taken it, so memory is bounded by the longest message. kClosed at the end of the connection, or if the message is
  /// too long, which its first bytes say.
  State read(const Socket& socket);
  /// The next whole message.
  std::optional<Message> next();
  /// Whether what was read is not a message, and nothing more will come.
  bool broken() const { return broken_; }
  /// Longer messages than this break the connection before memory is taken for them.
  void set_longest(uint32_t bytes) { longest_ = bytes; }

 private:
  /// Bytes of the message that is being read, as far as its head is here; 0 if it is too long.
  size_t wanted() const;

  std::string buffer_;
  uint32_t longest_ = kLongestMessage;
  bool broken_ = false;
};

/// Waits for one message; nothing if none comes in `seconds` or the connection ends.
std::optional<Message> receive_message(const Socket& socket, MessageReader& reader, double seconds);

}  // namespace hone
