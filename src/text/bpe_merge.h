// The merge loop of byte pair encoding: a table of mergeable pairs, and merging the symbols of one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace hone {

/// The result of merging a pair of tokens; a lower rank merges earlier.
struct Merge {
  uint32_t rank;
  int32_t id;
};

/// Pair of token ids -> merge. Open addressing in one block of memory: most of the time of encoding is this look-up.
class MergeTable {
 public:
  /// Reserves space for `expected` pairs.
  explicit MergeTable(size_t expected = 0);

  /// Adds a pair, or replaces its merge.
  void set(int32_t left, int32_t right, Merge merge);
  /// The merge of the pair, or nullptr. Ids are not negative.
  const Merge* find(int32_t left, int32_t right) const {
    for (size_t slot = first_slot(key(left, right));; slot = (slot + 1) & mask_) {
      if (entries_[slot].key == key(left, right)) return &entries_[slot].merge;
      if (entries_[slot].key == kEmpty) return nullptr;
    }
  }
  size_t size() const { return size_; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Entry {
    uint64_t key = kEmpty;
    Merge merge{};
  };

  static uint64_t key(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }
  size_t first_slot(uint64_t pair) const {
    // Multiplicative hashing (Knuth 6.4) of the folded pair; the high bits are mixed best.
    return size_t((pair ^ pair >> 29) * 0x9E3779B97F4A7C15u >> 32) & mask_;
  }

  std::vector<Entry> entries_;
  size_t mask_ = 0, size_ = 0;
};

/// A token of a piece while it merges: bytes [begin, end) of the piece.
struct Symbol {
  int32_t id;
  uint32_t begin, end;
  bool operator==(const Symbol&) const = default;
};

/// Memory that merge_symbols() reuses for each piece.
struct MergeScratch {
  struct Candidate {
    uint32_t rank, position;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Merge> merges;
  std::vector<uint32_t> previous, next;
  std::vector<Candidate> heap;
};

/// Merges the symbols of one piece until no pair merges: the pair of lowest rank first, and of equal ranks the
/// leftmost. O(n^2) with a small constant below ~32 symbols, O(n log n) above.
void merge_symbols(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch);

/// The implementations of merge_symbols(), for short, long and giant pieces; same result.
void merge_symbols_scanning(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch);
void merge_symbols_with_heap(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch);
void merge_symbols_by_rank(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch);

// A cache of the tokens of pieces: words repeat, so most pieces of a text need no merging.

/// A direct-mapped cache of short pieces and their tokens: a piece has one slot, given by its hash; a new piece
/// overwrites the slot. Not thread-safe: no lock, one cache line per look-up.
class PieceCache {
 public:
  /// Appends the tokens of `piece` to `out`; returns false if the piece is not cached.
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

  /// Stores nothing if the piece or its tokens do not fit, or if the tokens do not cover the piece without gaps.
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
  static constexpr int kSlotBits = 15;  // 2 MB: the size of a core's L2 cache
  static constexpr size_t kSlots = size_t{1} << kSlotBits;

  /// A piece, padded with zeros.
  struct Key {
    uint64_t words[3] = {};

    Key() = default;
    explicit Key(std::string_view piece) { std::memcpy(words, piece.data(), piece.size()); }
    size_t slot() const {
      // Multiplicative hashing (Knuth 6.4); the high bits are mixed best.
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
