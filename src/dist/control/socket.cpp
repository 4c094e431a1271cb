#include "dist/control/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace hone {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr int kSendMilliseconds = 10000;

/// Waits for `events`; false if they do not occur within `seconds`.
bool wait_for(int descriptor, short events, double seconds) {
  pollfd entry{descriptor, events, 0};
  const Deadline deadline(seconds);
  while (true) {
    const int milliseconds = static_cast<int>(std::min(deadline.left() * 1e3 + 1, 1e9));
    const int count = ::poll(&entry, 1, milliseconds);
    if (count >= 0 || errno != EINTR) return count > 0;
  }
}

Addresses resolve(const char* host, int port, int flags, std::string& problem) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (error != 0) problem = gai_strerror(error);
  return {error == 0 ? found : nullptr, &freeaddrinfo};
}

void set(int descriptor, int level, int option, int value) {
  setsockopt(descriptor, level, option, &value, sizeof value);
}

Socket open_socket(const addrinfo& address) {
  return Socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
}

bool connect_within(const Socket& socket, const addrinfo& address, double seconds) {
  if (::connect(socket.descriptor(), address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  if (!wait_for(socket.descriptor(), POLLOUT, seconds)) {
    errno = ETIMEDOUT;
    return false;
  }
  socklen_t size = sizeof errno;
  int error = 0;
  getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error == 0;
}

/// An address in numeric form; an IPv4-mapped IPv6 address in IPv4's form.
std::string text_of(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  const std::string numbers = text.data(), mapped = "::ffff:";
  return numbers.starts_with(mapped) ? numbers.substr(mapped.size()) : numbers;
}

/// Whether a socket is connected to itself. The system may assign the destination port as the source port if nobody
/// listens at it.
bool is_with_itself(const Socket& socket) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  return ::getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         own_size == peer_size && std::memcmp(&own, &peer, own_size) == 0;
}

bool send_all(const Socket& socket, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = ::send(socket.descriptor(), data, size, MSG_NOSIGNAL);
    if (sent > 0) {
      data += sent;
      size -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket.descriptor(), POLLOUT, kSendMilliseconds * 1e-3)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

Socket connect_to(const std::string& host, int port, double seconds, std::string& problem) {
  const Deadline deadline(seconds);
  const Addresses addresses = resolve(host.c_str(), port, 0, problem);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    Socket socket = open_socket(*address);
    if (socket.open() && connect_within(socket, *address, deadline.left())) {
      if (is_with_itself(socket)) {
        problem = std::strerror(ECONNREFUSED);
        continue;
      }
      set(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
      return socket;
    }
    problem = std::strerror(errno);
  }
  return {};
}

Socket listen_at(const std::string& host, int port, std::string& problem) {
  const Addresses addresses = resolve(is_loopback(host) ? host.c_str() : nullptr, port, AI_PASSIVE, problem);
  // An IPv6 socket also accepts IPv4; without IPv6 the list has an IPv4 address.
  for (const bool ipv6 : {true, false}) {
    for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
      if ((address->ai_family == AF_INET6) != ipv6) continue;
      Socket socket = open_socket(*address);
      if (!socket.open()) continue;
      set(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (ipv6) set(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
      if (::bind(socket.descriptor(), address->ai_addr, address->ai_addrlen) == 0 &&
          ::listen(socket.descriptor(), SOMAXCONN) == 0) {
        return socket;
      }
      problem = std::strerror(errno);
    }
  }
  return {};
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

std::string peer_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  const bool known = ::getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  return known ? text_of(address, size) : "";
}

int port_of(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void wait_to_read(const std::vector<int>& descriptors, double seconds) {
  std::vector<pollfd> entries;
  for (const int descriptor : descriptors) entries.push_back({descriptor, POLLIN, 0});
  ::poll(entries.data(), entries.size(), static_cast<int>(std::clamp(seconds * 1e3 + 1, 0.0, 1e9)));
}

Socket accept_from(const Socket& listener, double seconds) {
  if (seconds > 0 && !wait_for(listener.descriptor(), POLLIN, seconds)) return {};
  Socket socket(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.open()) set(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

bool send_message(const Socket& socket, uint8_t type, std::string_view bytes) {
  if (!socket.open() || bytes.size() > kLongestMessage) return false;
  const uint32_t size = static_cast<uint32_t>(bytes.size());
  std::string message(1 + sizeof size, static_cast<char>(type));
  for (size_t i = 0; i < sizeof size; ++i) message[1 + i] = static_cast<char>(size >> (8 * i));
  message += bytes;
  return send_all(socket, message.data(), message.size());
}

size_t MessageReader::wanted() const {
  if (buffer_.size() < kMessageHead) return kMessageHead;
  uint32_t size = 0;
  for (size_t i = 0; i < sizeof size; ++i) size |= uint32_t{static_cast<unsigned char>(buffer_[1 + i])} << (8 * i);
  return size > longest_ ? 0 : kMessageHead + size;
}

MessageReader::State MessageReader::read(const Socket& socket) {
  std::array<char, 65536> chunk;
  while (!broken_) {
    const size_t whole = wanted();
    broken_ = whole == 0;
    if (broken_ || buffer_.size() == whole) break;  // a message may consist of the header only
    const size_t missing = std::min(chunk.size(), whole - buffer_.size());
    const ssize_t count = ::recv(socket.descriptor(), chunk.data(), missing, MSG_DONTWAIT);
    if (count > 0) {
      buffer_.append(chunk.data(), static_cast<size_t>(count));
    } else if (count == 0) {
      return State::kClosed;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK ? State::kOpen : State::kClosed;
    }
  }
  return broken_ ? State::kClosed : State::kOpen;
}

std::optional<Message> MessageReader::next() {
  if (broken_ || buffer_.size() < kMessageHead || buffer_.size() < wanted() || wanted() == 0) return std::nullopt;
  Message message{static_cast<uint8_t>(buffer_[0]), buffer_.substr(kMessageHead)};
  buffer_.clear();
  return message;
}

std::optional<Message> receive_message(const Socket& socket, MessageReader& reader, double seconds) {
  const Deadline deadline(seconds);
  while (true) {
    if (std::optional<Message> message = reader.next()) return message;
    if (reader.broken() || deadline.passed() || !wait_for(socket.descriptor(), POLLIN, deadline.left())) {
      return std::nullopt;
    }
    if (reader.read(socket) == MessageReader::State::kClosed) return reader.next();
  }
}

}  // namespace hone
