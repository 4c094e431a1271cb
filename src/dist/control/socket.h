// TCP between the hosts of a run: connections, deadlines, and messages with a type.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/descriptor.h"

namespace hone {

class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  /// The remaining seconds, at least 0.
  double left() const { return std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count()); }
  bool passed() const { return left() == 0; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

/// The file descriptor of a connection or a listener.
using Socket = Descriptor;

/// Connects to host:port over IPv4 or IPv6. If that fails or takes longer than `seconds`, the result is not open and
/// `problem` has the reason.
Socket connect_to(const std::string& host, int port, double seconds, std::string& problem);
/// Listens at `port`: on the loopback only if `host`, the name by which other ranks reach this host, is a name of the
/// loopback; otherwise on all addresses. If that fails, the result is not open and `problem` has the reason.
Socket listen_at(const std::string& host, int port, std::string& problem);
/// Whether `host` is a name or address of the loopback.
bool is_loopback(const std::string& host);
/// The numeric address of the other end of a connection; "" if it has ended.
std::string peer_address(const Socket& socket);
/// The port of a listener, also if it was opened with port 0.
int port_of(const Socket& listener);
/// Accepts the next connection; not open if there is none within `seconds`.
Socket accept_from(const Socket& listener, double seconds);
/// Waits at most `seconds` until one of the descriptors is readable or closed.
void wait_to_read(const std::vector<int>& descriptors, double seconds);

struct Message {
  uint8_t type = 0;
  std::string bytes;
};

/// Longer messages are refused. Messages of ranks are much shorter.
constexpr uint32_t kLongestMessage = uint32_t{256} << 20;
/// Bytes of a message's header: its type and its length.
constexpr size_t kMessageHead = 5;

/// Sends the whole message. Returns false if the connection has ended, or accepts no bytes for ten seconds.
bool send_message(const Socket& socket, uint8_t type, std::string_view bytes);

/// Splits the bytes of a connection into messages.
class MessageReader {
 public:
  enum class State { kOpen, kClosed };

  /// Reads the available bytes of one message without waiting. Later messages stay in the kernel until next() has
  /// returned this one, so memory is bounded by the longest message. Returns kClosed at the end of the connection, or
  /// if the header's length is too long.
  State read(const Socket& socket);
  /// The next complete message, or nullopt.
  std::optional<Message> next();
  /// Whether an invalid message was read. No more messages follow.
  bool broken() const { return broken_; }
  /// Sets the limit of a message's length. A longer message breaks the connection before memory is allocated for it.
  void set_longest(uint32_t bytes) { longest_ = bytes; }

 private:
  /// Bytes of the current message with its header (or of the header, if that is incomplete); 0 if it is too long.
  size_t wanted() const;

  std::string buffer_;
  uint32_t longest_ = kLongestMessage;
  bool broken_ = false;
};

/// Waits for one message; nullopt if none arrives within `seconds` or the connection ends.
std::optional<Message> receive_message(const Socket& socket, MessageReader& reader, double seconds);

}  // namespace hone
