#include "dist/transport/transport.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/program.h"
#include "dist/control/socket.h"
#include "dist/transport/gathering.h"

namespace hone {

namespace {

constexpr double kConnectSeconds = 5;
constexpr auto kBetweenTries = std::chrono::milliseconds(50);
/// Unauthenticated connections that may be open at a time in addition to those of the ranks.
constexpr size_t kMostStrangers = 64;
/// Interval of Control::check() while no data moves.
constexpr int kMillisecondsBetweenChecks = 20;

/// A connection to another rank. Both ranks know the lengths of messages, so only their bytes are sent.
struct Peer {
  Socket socket;
  std::deque<Piece<const std::byte>> out;
  std::deque<Piece<std::byte>> in;
};

class TcpTransport : public Transport {
 public:
  TcpTransport(ControlChannel& control, std::vector<Socket> sockets) : control_(control), peers_(sockets.size()) {
    for (size_t rank = 0; rank < sockets.size(); ++rank) peers_[rank].socket = std::move(sockets[rank]);
  }

  ~TcpTransport() override { end_together(control_); }
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
        const PieceProgress sent = advance(peer.out, [&](const std::byte* data, size_t bytes) {
          return ::send(socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        });
        const PieceProgress received =
            advance(peer.in, [&](std::byte* data, size_t bytes) { return ::recv(socket, data, bytes, MSG_DONTWAIT); });
        if (sent == PieceProgress::kBroken || received == PieceProgress::kBroken) {
          throw_broken(control_,
                       fmt::format("the connection to {} has ended", control_.name_of(static_cast<int>(rank))));
        }
        moved |= sent == PieceProgress::kSome || received == PieceProgress::kSome;
        done &= peer.out.empty() && peer.in.empty();
      }
      if (done) return;
      if (!moved && !something_can_move()) control_.check();
    }
  }

 private:
  /// Waits until a connection can send or receive; false if none can within kMillisecondsBetweenChecks.
  bool something_can_move() {
    polled_.clear();
    for (const Peer& peer : peers_) {
      const int events = (peer.out.empty() ? 0 : POLLOUT) | (peer.in.empty() ? 0 : POLLIN);
      if (events != 0) polled_.push_back({peer.socket.descriptor(), static_cast<short>(events), 0});
    }
    return ::poll(polled_.data(), polled_.size(), kMillisecondsBetweenChecks) > 0;
  }

  ControlChannel& control_;
  std::vector<Peer> peers_;  // by rank; this rank's entry is unused
  std::vector<pollfd> polled_;
};

/// Connects the ranks: each listens at a port, connects to lower ranks, and authenticates higher ones.
class Meeting {
 public:
  Meeting(ControlChannel& control, double seconds)
      : control_(control),
        deadline_(seconds),
        callers_(own_listener(control), control.key().secret, claims(0),
                 kMostStrangers + static_cast<size_t>(control.size())),
        ports_(exchange_ports()),
        sockets_(static_cast<size_t>(control.size())) {}

  std::vector<Socket> sockets() {
    for (int rank = 0; rank < control_.rank(); ++rank) go_to(rank);
    while (std::any_of(sockets_.begin() + control_.rank() + 1, sockets_.end(),
                       [](const Socket& socket) { return !socket.open(); })) {
      let_in();
    }
    control_.barrier();  // from now on connections carry messages
    return std::move(sockets_);
  }

 private:
  static Socket own_listener(ControlChannel& control) {
    std::string problem;
    const std::string& own = control.ranks()[static_cast<size_t>(control.rank())].address;
    Socket listener = listen_at(control.on_one_host() ? own : "", 0, problem);
    if (listener.open()) return listener;
    throw Error(ExitCode::kDeviceFailed, "cannot listen at a port: " + problem, "", "look at `ss -s`");
  }

  Claims claims(int port) const {
    return {version(), "data", control_.key().run, port, control_.rank(), control_.size()};
  }

  std::vector<int> exchange_ports() {
    std::vector<int> ports;
    for (const std::string& text : control_.exchange(fmt::format("{}", callers_.port()))) {
      ports.push_back(std::atoi(text.c_str()));
    }
    return ports;
  }

  /// Connects to `rank`. Retries until the deadline, since a busy rank may answer late.
  void go_to(int rank) {
    const std::string& host = control_.ranks()[static_cast<size_t>(rank)].address;
    const int port = ports_[static_cast<size_t>(rank)];
    std::string problem;
    while (true) {
      control_.check();
      MessageReader reader;
      Socket socket = connect_to(host, port, std::min(kConnectSeconds, deadline_.left()), problem);
      if (socket.open()) {
        const ProofAnswer answer = prove(socket, reader, claims(port), [this] { return control_.key().secret; });
        if (answer == ProofAnswer::kProven) {
          sockets_[static_cast<size_t>(rank)] = std::move(socket);
          return;
        }
        problem = "no rank of this run answers there";
      }
      if (deadline_.passed()) break;
      std::this_thread::sleep_for(kBetweenTries);
    }
    throw Error(ExitCode::kDeviceFailed,
                fmt::format("rank {} cannot reach {} at {}:{}: {}", control_.rank(), control_.name_of(rank), host, port,
                            problem),
                "", "the hosts of CPU ranks must reach each other at any port: check their firewalls");
  }

  /// Accepts higher ranks. A rank that connects again replaces its connection: it did not receive the confirmation.
  void let_in() {
    control_.check();
    if (deadline_.passed()) {
      throw Error(ExitCode::kDeviceFailed, fmt::format("not all ranks have connected to rank {}", control_.rank()), "",
                  "look at their logs");
    }
    std::vector<int> descriptors;
    callers_.add_descriptors(descriptors);
    wait_to_read(descriptors, kMillisecondsBetweenChecks * 1e-3);
    for (ProvenCaller& caller : callers_.serve()) {
      const int rank = caller.claims.rank;
      const bool expected = caller.claims.run == control_.key().run && rank > control_.rank() && rank < control_.size();
      if (expected) sockets_[static_cast<size_t>(rank)] = std::move(caller.socket);
    }
  }

  ControlChannel& control_;
  const Deadline deadline_;
  Callers callers_;
  const std::vector<int> ports_;  // one for each rank
  std::vector<Socket> sockets_;
};

}  // namespace

std::unique_ptr<Transport> connect_tcp(ControlChannel& control, double seconds) {
  return std::make_unique<TcpTransport>(control, Meeting(control, seconds).sockets());
}

}  // namespace hone
