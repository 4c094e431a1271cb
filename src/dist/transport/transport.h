// Transport: point-to-point messages between the host memory of ranks, over shared memory or TCP. Collectives of CPU
// ranks use it (cpu_communicator.h).
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "dist/control/control.h"
#include "dist/transport/control_channel.h"

namespace hone {

/// Messages from one rank to another arrive in the order they were sent. One thread at a time may use it.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts a send; the memory must not change until wait() returns.
  virtual void send(int to, const std::byte* data, size_t bytes) = 0;
  /// Starts a receive; the sender's message must have the same size.
  virtual void receive(int from, std::byte* data, size_t bytes) = 0;
  /// Waits for all started sends and receives. Throws Error(kDeviceFailed) if a rank is lost.
  virtual void wait() = 0;
};

/// Some ranks of a transport, in ascending order, numbered from 0. This rank is one of them.
class GroupTransport : public Transport {
 public:
  GroupTransport(std::shared_ptr<Transport> all, std::vector<int> ranks);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  void send(int to, const std::byte* data, size_t bytes) override { all_->send(of_all(to), data, bytes); }
  void receive(int from, std::byte* data, size_t bytes) override { all_->receive(of_all(from), data, bytes); }
  void wait() override { all_->wait(); }

 private:
  int of_all(int rank) const { return ranks_.at(static_cast<size_t>(rank)); }

  std::shared_ptr<Transport> all_;
  std::vector<int> ranks_;
  int rank_;
};

// Helpers of transports: waiting for data, and ending.

/// A wait of a transport. It retries without a pause while data moved recently, then with pauses, and calls
/// Control::check() from time to time.
class PatientWait {
 public:
  explicit PatientWait(Control& control) : control_(control) {}

  void moved() { last_moved_ = Clock::now(); }
  /// Call it when no data moved. Throws as Control::check() does.
  void pause();

 private:
  using Clock = std::chrono::steady_clock;

  Control& control_;
  Clock::time_point last_moved_ = Clock::now(), last_check_ = last_moved_;
};

/// Waits for the other ranks if the group has not ended: launchers treat a rank that ends early as lost and would end
/// ranks that are still saving. Not while an exception ends this rank: the others wait for what it did not do.
void end_together(Control& control) noexcept;

// Partial messages. Both sides know the lengths.

/// The remainder of a message that is being sent or received.
template <class Byte>
struct Piece {
  Byte* data;
  size_t bytes;
};

enum class PieceProgress { kNone, kSome, kBroken };

/// Moves as many bytes as possible without waiting. `move` returns what send(2) and recv(2) return.
template <class Byte, class Move>
PieceProgress advance(std::deque<Piece<Byte>>& pieces, Move move) {
  constexpr size_t kMostAtOnce = size_t{1} << 30;  // the kernel moves less per call
  PieceProgress progress = PieceProgress::kNone;
  while (!pieces.empty()) {
    Piece<Byte>& piece = pieces.front();
    const ssize_t count = move(piece.data, std::min(piece.bytes, kMostAtOnce));
    if (count == 0) return PieceProgress::kBroken;  // pieces are not empty: the connection has ended
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? progress : PieceProgress::kBroken;
    }
    progress = PieceProgress::kSome;
    piece.data += count;
    piece.bytes -= static_cast<size_t>(count);
    if (piece.bytes == 0) pieces.pop_front();
  }
  return progress;
}

// Shared memory: for CPU ranks on one host. It opens no port.

/// Makes a ring for each pair of ranks and direction in anonymous memory of the receiving rank. The other ranks open it
/// through /proc, which the system permits to the same user only. All ranks call it. Returns null on all ranks if one
/// cannot open another's memory (other users, containers, hosts). `control` must outlive the result. Throws
/// Error(kDeviceFailed) if a rank is lost.
std::unique_ptr<Transport> connect_shared_memory(ControlChannel& control);

// TCP: for CPU ranks on several hosts; one connection per pair of ranks.

/// Connects every rank with every other rank; all ranks call it. Of two ranks the higher connects to the lower, at a
/// port that the system chooses, and both authenticate (run_secret.h). Ranks on one host use the loopback. `control`
/// must outlive the result. Throws Error(kDeviceFailed) if a rank cannot be reached in `seconds` or is lost.
std::unique_ptr<Transport> connect_tcp(ControlChannel& control, double seconds = 60);

}  // namespace hone
