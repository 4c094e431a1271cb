#include "dist/descriptor_exchange.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>

#include "core/error.h"

namespace hone {

namespace {

constexpr int kSeconds = 20;
constexpr int kBacklog = 128;  // others of this machine may try, too

/// Names this boot of this host, so that sockets of another host are not tried.
std::string boot_id() {
  std::string id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, id);
  return id;
}

/// An address in the abstract namespace: it needs no file, and ends with its socket.
struct Address {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    HONE_ASSERT(name.size() + 1 < sizeof address.sun_path);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

std::string unused_name() {
  static std::atomic<int> number = 0;
  std::random_device random;
  return fmt::format("hone-{}-{}-{:08x}", getpid(), number++, random());
}

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == getuid();
}

bool readable(int socket) {
  pollfd waited{socket, POLLIN, 0};
  return poll(&waited, 1, kSeconds * 1000) == 1;
}

/// A message of one byte with a descriptor, and the memory that it refers to.
struct Message {
  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

bool send_descriptor(int socket, int descriptor) {
  Message message;
  cmsghdr* extra = CMSG_FIRSTHDR(&message.header);
  extra->cmsg_level = SOL_SOCKET;
  extra->cmsg_type = SCM_RIGHTS;
  extra->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(extra), &descriptor, sizeof descriptor);
  return sendmsg(socket, &message.header, MSG_NOSIGNAL) == 1;
}

Descriptor receive_descriptor(int socket) {
  Message message;
  if (!readable(socket) || recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) != 1) return Descriptor();
  const cmsghdr* extra = CMSG_FIRSTHDR(&message.header);
  if (extra == nullptr || extra->cmsg_type != SCM_RIGHTS) return Descriptor();
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(extra), sizeof descriptor);
  return Descriptor(descriptor);
}

Descriptor local_socket() { return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

/// Sends the descriptor to `count` connections of this user.
bool serve(int listener, int descriptor, int count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kSeconds);
  while (count > 0) {
    if (std::chrono::steady_clock::now() > end || !readable(listener)) return false;
    const Descriptor connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() < 0 || !is_of_this_user(connection.get())) continue;
    if (!send_descriptor(connection.get(), descriptor)) return false;
    --count;
  }
  return true;
}

}  // namespace

std::vector<Descriptor> exchange_descriptors(Control& control, const Descriptor& mine, std::string& why_not) {
  const int others = control.size() - 1;
  const Descriptor listener = local_socket();
  const std::string name = unused_name();
  const Address own(name);
  const bool listens = bind(listener.get(), own.get(), own.length) == 0 && listen(listener.get(), kBacklog) == 0;
  const std::string host = boot_id();
  std::vector<std::string> names = control.exchange(listens ? host + " " + name : "");
  std::string problem;
  std::vector<Descriptor> connections(names.size());
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (rank == static_cast<size_t>(control.rank())) continue;
    if (!names[rank].starts_with(host + " ")) {
      problem = "ranks are on several hosts";
      continue;
    }
    const Address address(names[rank].substr(host.size() + 1));
    connections[rank] = local_socket();
    if (connect(connections[rank].get(), address.get(), address.length) != 0 ||
        !is_of_this_user(connections[rank].get())) {
      problem = "a rank cannot reach another over a Unix socket";
    }
  }
  const auto problem_of_any = [&] {
    for (const std::string& text : control.exchange(problem)) {
      if (!text.empty()) why_not = text;
    }
    return !why_not.empty();
  };
  why_not.clear();
  if (problem_of_any()) return {};
  if (!serve(listener.get(), mine.get(), others)) problem = "a rank did not take the descriptor of another";
  std::vector<Descriptor> descriptors;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    const bool own_rank = rank == static_cast<size_t>(control.rank());
    descriptors.push_back(own_rank ? Descriptor(dup(mine.get())) : receive_descriptor(connections[rank].get()));
    if (descriptors.back().get() < 0) problem = "a rank did not get the descriptor of another";
  }
  if (problem_of_any()) descriptors.clear();
  return descriptors;
}

}  // namespace hone
