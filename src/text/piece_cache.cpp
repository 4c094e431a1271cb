#include "text/piece_cache.h"

namespace hone {

bool PieceCache::append(std::string_view piece, std::vector<Symbol>& out) {
  if (piece.size() > kMaxPieceBytes) return false;
  Shard& shard = shard_of(piece);
  const std::unique_lock lock(shard.mutex, std::try_to_lock);
  if (!lock) return false;
  const auto found = shard.pieces.find(piece);
  if (found == shard.pieces.end()) return false;
  out.insert(out.end(), found->second.begin(), found->second.end());
  return true;
}

void PieceCache::remember(std::string_view piece, const Symbol* tokens, size_t count) {
  if (piece.size() > kMaxPieceBytes) return;
  Shard& shard = shard_of(piece);
  const std::unique_lock lock(shard.mutex, std::try_to_lock);
  if (!lock) return;
  if (shard.pieces.size() >= kMaxPieces) shard.pieces.clear();
  shard.pieces.emplace(piece, std::vector<Symbol>(tokens, tokens + count));
}

}  // namespace hone
