// What has still to be moved of messages whose lengths both sides know.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <deque>

namespace hone {

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

}  // namespace hone
