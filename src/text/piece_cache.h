// Tokens of pieces seen before: words repeat, so most pieces of a text need no merging.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "text/bpe_merge.h"

namespace hone {

/// Short pieces and their tokens, each in the one slot its hash says, where a later one takes its place. For one
/// thread: no lock, no list to follow, one cache line a look-up.
class PieceCache {
 public:
  /// Appends the tokens of `piece` to `out`; false if they are not known.
  bool append(std::string_view piece, std::vector<Symbol>& out) const {
    if (piece.size() > kMaxBytes || slots_.empty()) return false;
    const Key key(piece);
    const Slot& slot = slots_[key.slot()];
    if (slot.count == 0 || slot.size != piece.size() || std::memcmp(slot.key.words, key.words, kMaxBytes) != 0)
      return false;
    for (uint32_t i = 0, begin = 0; i < slot.count; begin = slot.ends[i++])
      out.push_back({slot.ids[i], begin, slot.ends[i]});
    return true;
  }

  /// Nothing if piece or tokens do not fit, or if the tokens do not follow each other without gaps.
  void remember(std::string_view piece, const std::vector<Symbol>& tokens) {
    if (piece.size() > kMaxBytes || tokens.size() > kMaxTokens || tokens.empty()) return;
    if (slots_.empty()) slots_.resize(kSlots);
    Slot slot{Key(piece), uint8_t(piece.size()), uint8_t(tokens.size()), {}, {}};
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].begin != (i == 0 ? 0 : tokens[i - 1].end)) return;
      slot.ids[i] = tokens[i].id;
      slot.ends[i] = uint8_t(tokens[i].end);
    }
    slots_[slot.key.slot()] = slot;
  }

 private:
  static constexpr size_t kMaxBytes = 24, kMaxTokens = 6;
  static constexpr int kSlotBits = 15;  // 2 MB: what a core's second-level cache holds
  static constexpr size_t kSlots = size_t{1} << kSlotBits;

  /// A piece with zeros behind it.
  struct Key {
    uint64_t words[3] = {};

    Key() = default;
    explicit Key(std::string_view piece) { std::memcpy(words, piece.data(), piece.size()); }
    size_t slot() const {
      // Multiplicative hashing (Knuth 6.4); the high bits are the well-mixed ones.
      uint64_t hash = words[0] * 0x9E3779B97F4A7C15u;
      hash = (hash ^ hash >> 32 ^ words[1]) * 0xC2B2AE3D27D4EB4Fu;
      hash = (hash ^ hash >> 32 ^ words[2]) * 0x9E3779B97F4A7C15u;
      return size_t(hash >> (64 - kSlotBits));
    }
  };
  struct alignas(64) Slot {
    Key key;
    uint8_t size = 0, count = 0;  // count 0: empty
    uint8_t ends[kMaxTokens] = {};
    int32_t ids[kMaxTokens] = {};
  };

  std::vector<Slot> slots_;  // empty until something is remembered
};

}  // namespace hone
