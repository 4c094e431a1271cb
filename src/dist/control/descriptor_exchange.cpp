#include "dist/control/descriptor_exchange.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>

#include "core/base/error.h"
#include "dist/control/local_process.h"

namespace hone {

namespace {

constexpr int kSeconds = 20;
constexpr int kBacklog = 128;  // others of this machine may try, too

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
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

bool send_descriptor(int socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* extra = CMSG_FIRSTHDR(&message.header);
  extra->cmsg_level = SOL_SOCKET;
  extra->cmsg_type = SCM_RIGHTS;
  extra->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(extra), &descriptor, sizeof descriptor);
  return sendmsg(socket, &message.header, MSG_NOSIGNAL) == 1;
}

Descriptor receive_descriptor(int socket) {
  DescriptorMessage message;
  if (!readable(socket) || recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) != 1) return Descriptor();
  const cmsghdr* extra = CMSG_FIRSTHDR(&message.header);
  if (extra == nullptr || extra->cmsg_type != SCM_RIGHTS) return Descriptor();
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(extra), sizeof descriptor);
  return Descriptor(descriptor);
}

Descriptor local_socket() { return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

bool send_number(int socket, int32_t number) {
  return send(socket, &number, sizeof number, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof number);
}

/// -1 if there is none.
int32_t receive_number(int socket) {
  int32_t number = -1;
  const bool whole = readable(socket) && recv(socket, &number, sizeof number, MSG_WAITALL) == sizeof number;
  return whole ? number : -1;
}

/// The connections of a group's ranks to this one, by place.
class Exchange {
 public:
  Exchange(Control& control, RankRange group)
      : control_(control), group_(group), place_(static_cast<size_t>(control.rank() - group.first)) {
    HONE_ASSERT(place_ < static_cast<size_t>(group.count));
  }

  std::string connect() {
    listener_ = local_socket();
    const std::string name = unused_name();
    const Address own(name);
    const bool listens =
        bind(listener_.descriptor(), own.get(), own.length) == 0 && listen(listener_.descriptor(), kBacklog) == 0;
    const std::string host = own_place().boot;  // sockets of another host are not tried
    const std::vector<std::string> names = of_group(listens ? host + " " + name : "");
    for (size_t place = 0; place < names.size(); ++place) {
      to_.emplace_back();
      from_.emplace_back();
      if (place == place_) continue;
      if (!names[place].starts_with(host + " ")) {
        problem_ = "ranks are on several hosts";
        continue;
      }
      to_[place] = local_socket();
      const Address address(names[place].substr(host.size() + 1));
      if (::connect(to_[place].descriptor(), address.get(), address.length) != 0 ||
          !is_of_this_user(to_[place].descriptor()) ||
          !send_number(to_[place].descriptor(), static_cast<int32_t>(place_))) {
        problem_ = "a rank cannot reach another over a Unix socket";
      }
    }
    if (const std::string problem = control_.first_stated(problem_); !problem.empty()) return problem;
    accept_all();
    return control_.first_stated(problem_);
  }

  /// One rank after another sends its descriptors to all others. Each is taken before the next is sent: the system
  /// limits how many are on their way.
  std::string send_all(const std::vector<Descriptor>& mine, const std::function<void(int, const Descriptor&)>& take) {
    for (const Descriptor& descriptor : mine) take(static_cast<int>(place_), descriptor);
    const std::vector<std::string> counts = of_group(std::to_string(mine.size()));
    for (size_t owner = 0; owner < counts.size() && problem_.empty(); ++owner) {
      const auto count = std::stoul(counts[owner]);
      if (owner == place_) {
        for (size_t place = 0; place < counts.size(); ++place) {
          if (place != place_) send_to(from_[place].descriptor(), mine);
        }
        continue;
      }
      for (size_t i = 0; i < count && problem_.empty(); ++i) {
        const Descriptor descriptor = receive_descriptor(to_[owner].descriptor());
        if (!descriptor.open() || !send_number(to_[owner].descriptor(), 0)) {
          problem_ = "a rank did not get the memory of another";
        } else {
          take(static_cast<int>(owner), descriptor);
        }
      }
    }
    return control_.first_stated(problem_);
  }

 private:
  /// The texts of the group's ranks.
  std::vector<std::string> of_group(const std::string& mine) {
    const std::vector<std::string> all = control_.exchange(mine);
    const auto first = all.begin() + group_.first;
    return {first, first + group_.count};
  }

  void accept_all() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kSeconds);
    for (size_t missing = from_.size() - 1; missing > 0;) {
      if (std::chrono::steady_clock::now() > end || !readable(listener_.descriptor())) {
        problem_ = "a rank cannot reach another over a Unix socket";
        return;
      }
      Descriptor connection(accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.open() || !is_of_this_user(connection.descriptor())) continue;
      const int32_t place = receive_number(connection.descriptor());
      if (place < 0 || static_cast<size_t>(place) >= from_.size() || from_[static_cast<size_t>(place)].open()) continue;
      from_[static_cast<size_t>(place)] = std::move(connection);
      --missing;
    }
  }

  void send_to(int socket, const std::vector<Descriptor>& mine) {
    for (const Descriptor& descriptor : mine) {
      if (send_descriptor(socket, descriptor.descriptor()) && receive_number(socket) == 0) continue;
      problem_ = "a rank did not take the memory of another";
      return;
    }
  }

  Control& control_;
  RankRange group_;
  size_t place_;
  Descriptor listener_;
  std::vector<Descriptor> to_, from_;  // connections that this rank has opened, and accepted
  std::string problem_;
};

}  // namespace

std::string exchange_descriptors(Control& control, RankRange group, const std::vector<Descriptor>& mine,
                                 const std::function<void(int place, const Descriptor&)>& take) {
  Exchange exchange(control, group);
  const std::string problem = exchange.connect();
  return problem.empty() ? exchange.send_all(mine, take) : problem;
}

}  // namespace hone
