// Transport: bytes between the ranks' host memory, over MPI, shared memory or TCP. What collectives of CPU ranks are
// made of (cpu_communicator.h).
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>

#include "dist/control.h"
#include "dist/control_channel.h"

namespace hone {

/// Messages from one rank to another arrive in the order they were sent. Used by one thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts; the memory must stay as it is until wait().
  virtual void send(int to, const std::byte* data, size_t bytes) = 0;
  /// Starts; the sender's message has the same size.
  virtual void receive(int from, std::byte* data, size_t bytes) = 0;
  /// Waits for all that was started. Throws Error(kDeviceFailed) if a rank is lost.
  virtual void wait() = 0;
};

// What transports of CPU ranks share: how they wait for data, and how they end.

/// One wait of a transport: it tries again without a pause as long as data came lately, then with pauses, and asks now
/// and then whether the group still lives.
class PatientWait {
 public:
  explicit PatientWait(Control& control) : control_(control) {}

  void moved() { last_moved_ = Clock::now(); }
  /// Nothing moved. Throws as Control::check() does.
  void pause();

 private:
  using Clock = std::chrono::steady_clock;

  Control& control_;
  Clock::time_point last_moved_ = Clock::now(), last_check_ = last_moved_;
};

/// Waits for the other ranks, if they live: a rank that ends early looks like a lost one to launchers, which then end
/// those that still save.
void end_together(Control& control) noexcept;

// What has still to be moved of messages whose lengths both sides know.

/// What was not sent, or has not come, of a message.
template <class Byte>
struct Piece {
  Byte* data;
  size_t bytes;
};

enum class PieceProgress { kNone, kSome, kBroken };

/// Moves what can be moved without waiting; `move` as send(2) and recv(2) return.
template <class Byte, class Move>
PieceProgress advance(std::deque<Piece<Byte>>& pieces, Move move) {
  constexpr size_t kMostAtOnce = size_t{1} << 30;  // the kernel takes less at once anyway
  PieceProgress progress = PieceProgress::kNone;
  while (!pieces.empty()) {
    Piece<Byte>& piece = pieces.front();
    const ssize_t count = move(piece.data, std::min(piece.bytes, kMostAtOnce));
    if (count == 0) return PieceProgress::kBroken;  // nothing has no length here, so this is the connection's end
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

// Messages between CPU ranks that mpirun or srun has started.

/// Whether the program has the module that speaks MPI.
bool mpi_is_built();

/// Starts MPI; once in a process, by the thread that also destroys it. `control`, of the same ranks, outlives it and
/// says when waiting has no sense any more. Throws UserError: MPI cannot be loaded or does not start, its ranks are not
/// the control's.
std::unique_ptr<Transport> start_mpi(Control& control);

// Messages between CPU ranks that are processes of one host: through memory that they share, with no port that anybody
// could connect to.

/// A ring for each pair of ranks and direction, in anonymous memory of the receiving rank, which the others open below
/// /proc: the system lets only this user do that. All ranks call it. Nothing, on all of them, where one cannot reach
/// another's memory (other users, containers, hosts). `control` outlives it. Throws Error(kDeviceFailed): a rank is
/// lost.
std::unique_ptr<Transport> connect_shared_memory(ControlChannel& control);

// Messages between CPU ranks whose launcher does not speak MPI (torchrun, ssh, srun without PMIx): a TCP connection for
// each pair of ranks.

/// Connects every rank with every other; all call it. The higher one of two comes to the lower, at a port that the
/// system chooses, and both prove that they are of the run (run_secret.h); where all are on one host, over the
/// loopback. `control` outlives it. Throws Error(kDeviceFailed): a rank that cannot be reached in `seconds`, or is
/// lost.
std::unique_ptr<Transport> connect_tcp(ControlChannel& control, double seconds = 60);

}  // namespace hone
