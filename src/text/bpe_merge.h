// The merge loop of byte pair encoding: which pairs of tokens merge, and merging one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hone {

/// What a pair of tokens becomes; a lower rank merges earlier.
struct Merge {
  uint32_t rank;
  int32_t id;
};

/// Pair of token ids -> merge: open addressing in one block of memory, since this look-up is most of encoding.
class MergeTable {
 public:
  /// Room for `expected` pairs.
  explicit MergeTable(size_t expected = 0);

  /// Adds a pair or, if it is there, gives it the new merge.
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
    // Multiplicative hashing (Knuth 6.4) of the folded pair; the high bits are the well-mixed ones.
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

/// Memory that merging reuses from piece to piece.
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

/// Merges the symbols of one piece until no pair merges: always the pair of lowest rank, of those the leftmost.
/// O(n^2) with a small constant below ~32 symbols, O(n log n) above.
void merge_symbols(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch);

/// The two ways merge_symbols() chooses from; same result.
void merge_symbols_scanning(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch);
void merge_symbols_with_heap(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch);

}  // namespace hone
