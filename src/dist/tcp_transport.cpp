#include "dist/tcp_transport.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <random>
#include <vector>

#include "core/error.h"
#include "dist/deadline.h"

namespace hone {

namespace {

constexpr double kConnectSeconds = 5;
constexpr double kHelloSeconds = 5;
constexpr uint32_t kLongestHello = 64;
constexpr uint8_t kHello = 'C';
/// Whether the group still lives is asked this often while nothing moves.
constexpr int kMillisecondsBetweenChecks = 20;
/// The kernel takes less at once anyway.
constexpr size_t kMostAtOnce = size_t{1} << 30;

/// What was not sent, or has not come, of a message.
template <class Byte>
struct Piece {
  Byte* data;
  size_t bytes;
};

/// Both ranks know how long each message is, so a connection carries nothing but their bytes.
struct Peer {
  Socket socket;
  std::deque<Piece<const std::byte>> out;
  std::deque<Piece<std::byte>> in;
};

enum class Progress { kNone, kSome, kBroken };

/// Moves what can be moved without waiting; `move` as send(2) and recv(2) return.
template <class Byte, class Move>
Progress advance(std::deque<Piece<Byte>>& pieces, Move move) {
  Progress progress = Progress::kNone;
  while (!pieces.empty()) {
    Piece<Byte>& piece = pieces.front();
    const ssize_t count = move(piece.data, std::min(piece.bytes, kMostAtOnce));
    if (count == 0) return Progress::kBroken;  // nothing has no length here, so this is the connection's end
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? progress : Progress::kBroken;
    }
    progress = Progress::kSome;
    piece.data += count;
    piece.bytes -= static_cast<size_t>(count);
    if (piece.bytes == 0) pieces.pop_front();
  }
  return progress;
}

class TcpTransport : public Transport {
 public:
  TcpTransport(ControlChannel& control, std::vector<Socket> sockets) : control_(control), peers_(sockets.size()) {
    for (size_t rank = 0; rank < sockets.size(); ++rank) peers_[rank].socket = std::move(sockets[rank]);
  }

  ~TcpTransport() override {
    // A rank that ends early looks like a lost one to launchers, which then end those that still save.
    try {
      control_.barrier();
    } catch (const Error&) {
    }
  }
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  void send(int to, const std::byte* data, size_t bytes) override {
    if (bytes > 0) peers_[static_cast<size_t>(to)].out.push_back({data, bytes});
  }
  void receive(int from, std::byte* data, size_t bytes) override {
    if (bytes > 0) peers_[static_cast<size_t>(from)].in.push_back({data, bytes});
  }

  void wait() override {
    while (true) {
      bool moved = false, done = true;
      for (size_t rank = 0; rank < peers_.size(); ++rank) {
        Peer& peer = peers_[rank];
        const int socket = peer.socket.descriptor();
        const Progress sent = advance(peer.out, [&](const std::byte* data, size_t bytes) {
          return ::send(socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        });
        const Progress received =
            advance(peer.in, [&](std::byte* data, size_t bytes) { return ::recv(socket, data, bytes, MSG_DONTWAIT); });
        if (sent == Progress::kBroken || received == Progress::kBroken) {
          throw_broken(control_,
                       fmt::format("the connection to {} has ended", control_.name_of(static_cast<int>(rank))));
        }
        moved |= sent == Progress::kSome || received == Progress::kSome;
        done &= peer.out.empty() && peer.in.empty();
      }
      if (done) return;
      if (!moved && !something_can_move()) control_.check();
    }
  }

 private:
  /// Waits until some connection has room or bytes; false if none has for a while.
  bool something_can_move() {
    polled_.clear();
    for (const Peer& peer : peers_) {
      const int events = (peer.out.empty() ? 0 : POLLOUT) | (peer.in.empty() ? 0 : POLLIN);
      if (events != 0) polled_.push_back({peer.socket.descriptor(), static_cast<short>(events), 0});
    }
    return ::poll(polled_.data(), polled_.size(), kMillisecondsBetweenChecks) > 0;
  }

  ControlChannel& control_;
  std::vector<Peer> peers_;  // by rank; the own one is never used
  std::vector<pollfd> polled_;
};

std::string random_text() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// How ranks come together: where each listens, and what who comes there has to say.
class Meeting {
 public:
  Meeting(ControlChannel& control, double seconds)
      : control_(control), deadline_(seconds), sockets_(static_cast<size_t>(control.size())) {
    const std::vector<RankFacts>& ranks = control.ranks();
    const bool one_host =
        std::all_of(ranks.begin(), ranks.end(), [](const RankFacts& rank) { return is_loopback(rank.address); });
    std::string problem;
    listener_ = listen_at(one_host ? ranks[own()].address : "", 0, problem);
    if (!listener_.open())
      throw Error(ExitCode::kDeviceFailed, "no port can be had: " + problem, "", "look at `ss -s`");
    ports_ = control.exchange(fmt::format("{}", port_of(listener_)));
    words_ = control.exchange(random_text());
  }

  std::vector<Socket> sockets() {
    for (size_t rank = 0; rank < own(); ++rank) go_to(rank);
    while (std::any_of(sockets_.begin() + static_cast<ptrdiff_t>(own()) + 1, sockets_.end(),
                       [](const Socket& socket) { return !socket.open(); })) {
      let_in();
    }
    control_.barrier();  // from here on connections carry messages
    return std::move(sockets_);
  }

 private:
  size_t own() const { return static_cast<size_t>(control_.rank()); }
  std::string hello(size_t from, size_t to) const { return fmt::format("{} {}", from, words_[to]); }

  void go_to(size_t rank) {
    const std::string& host = control_.ranks()[rank].address;
    std::string problem;
    Socket& socket = sockets_[rank];
    socket = connect_to(host, std::stoi(ports_[rank]), std::min(kConnectSeconds, deadline_.left()), problem);
    if (socket.open() && send_message(socket, kHello, hello(own(), rank))) return;
    throw Error(ExitCode::kDeviceFailed,
                fmt::format("rank {} cannot reach {} at {}:{}: {}", own(), control_.name_of(static_cast<int>(rank)),
                            host, ports_[rank], problem.empty() ? "the connection has ended" : problem),
                "", "the hosts of CPU ranks must reach each other at any port: look at their firewalls");
  }

  /// Takes one who comes, if it is a rank.
  void let_in() {
    control_.check();
    if (deadline_.passed()) {
      throw Error(ExitCode::kDeviceFailed, fmt::format("not all ranks have come to rank {}", own()), "",
                  "look at their logs");
    }
    Socket socket = accept_from(listener_, kMillisecondsBetweenChecks * 1e-3);
    if (!socket.open()) return;
    MessageReader reader;
    reader.set_longest(kLongestHello);
    const std::optional<Message> message = receive_message(socket, reader, kHelloSeconds);
    for (size_t rank = own() + 1; message && rank < sockets_.size(); ++rank) {
      if (message->bytes == hello(rank, own())) sockets_[rank] = std::move(socket);
    }
  }

  ControlChannel& control_;
  const Deadline deadline_;
  Socket listener_;
  std::vector<std::string> ports_, words_;  // of all ranks
  std::vector<Socket> sockets_;
};

}  // namespace

std::unique_ptr<Transport> connect_tcp(ControlChannel& control, double seconds) {
  return std::make_unique<TcpTransport>(control, Meeting(control, seconds).sockets());
}

}  // namespace hone
