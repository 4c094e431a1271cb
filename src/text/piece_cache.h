// Tokens of pieces seen before: words repeat, so most pieces of a text need no merging.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe_merge.h"

namespace hone {

/// A bounded map from piece to tokens, for many threads. A thread that finds its part of the map busy does without.
class PieceCache {
 public:
  /// Appends the tokens of `piece` to `out`; false if they are not known.
  bool append(std::string_view piece, std::vector<Symbol>& out);
  void remember(std::string_view piece, const Symbol* tokens, size_t count);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<Symbol>, Hash, std::equal_to<>> pieces;
  };

  static constexpr size_t kMaxPieceBytes = 64;
  static constexpr size_t kShards = 64;
  static constexpr size_t kMaxPieces = 131072 / kShards;  // of a shard; ~20 MB in all

  Shard& shard_of(std::string_view piece) { return shards_[std::hash<std::string_view>()(piece) % kShards]; }

  std::array<Shard, kShards> shards_;
};

}  // namespace hone
