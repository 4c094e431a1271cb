#include "text/bpe_merge.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <unordered_map>

#include "core/base/error.h"

namespace hone {
namespace {

constexpr Merge kNoMerge{~uint32_t{0}, -1};
constexpr uint32_t kNone = ~uint32_t{0};

Merge merge_of(const MergeTable& table, const Symbol& left, const Symbol& right) {
  const Merge* merge = table.find(left.id, right.id);
  return merge ? *merge : kNoMerge;
}

using Candidate = MergeScratch::Candidate;

/// All candidates in one heap: the fastest for words of some hundred symbols.
class CandidateHeap {
 public:
  explicit CandidateHeap(MergeScratch& scratch) : heap_(scratch.heap) { heap_.clear(); }

  void push(Candidate candidate) {
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  std::optional<Candidate> pop() {
    if (heap_.empty()) return std::nullopt;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Candidate least = heap_.back();
    heap_.pop_back();
    return least;
  }

 private:
  std::vector<Candidate>& heap_;
};

/// The positions of each rank in a queue of their own. Nearly all come in ascending order, so that they are taken from
/// memory in sequence, where a heap of the millions of pairs of one word misses the caches at each of its levels.
class RankQueues {
 public:
  explicit RankQueues(MergeScratch&) {}

  void push(Candidate candidate) {
    Queue& queue = queues_[candidate.rank];
    if (!queue.listed) {
      queue.listed = true;
      ranks_.push_back({candidate.rank, &queue});
      std::push_heap(ranks_.begin(), ranks_.end(), later);
    }
    queue.push(candidate.position);
  }
  std::optional<Candidate> pop() {
    while (!ranks_.empty()) {
      const auto [rank, queue] = ranks_.front();
      if (const std::optional<uint32_t> position = queue->pop()) return Candidate{rank, *position};
      queue->listed = false;
      std::pop_heap(ranks_.begin(), ranks_.end(), later);
      ranks_.pop_back();
    }
    return std::nullopt;
  }

 private:
  /// Positions, the least first.
  struct Queue {
    std::vector<uint32_t> ascending, others;  // others: a heap
    size_t taken = 0;                         // how many of `ascending` are taken
    bool listed = false;                      // in ranks_

    void push(uint32_t position) {
      if (taken == ascending.size()) {
        ascending.clear();
        taken = 0;
      }
      if (ascending.empty() || ascending.back() < position) {
        ascending.push_back(position);
      } else {
        others.push_back(position);
        std::push_heap(others.begin(), others.end(), std::greater<>());
      }
    }
    std::optional<uint32_t> pop() {
      const bool more = taken < ascending.size();
      if (others.empty() || (more && ascending[taken] <= others.front())) {
        return more ? std::optional(ascending[taken++]) : std::nullopt;
      }
      std::pop_heap(others.begin(), others.end(), std::greater<>());
      const uint32_t least = others.back();
      others.pop_back();
      return least;
    }
  };
  struct Ranked {
    uint32_t rank;
    Queue* queue;
  };
  static bool later(const Ranked& a, const Ranked& b) { return a.rank > b.rank; }

  std::unordered_map<uint32_t, Queue> queues_;  // its elements stay where they are
  std::vector<Ranked> ranks_;                   // a heap
};

/// The symbols of a piece as a linked list, with a queue of mergeable pairs.
template <class Queue>
class QueueMerger {
 public:
  QueueMerger(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch)
      : table_(table), symbols_(symbols), scratch_(scratch), queue_(scratch) {
    const uint32_t count = uint32_t(symbols.size());
    scratch_.merges.assign(count, kNoMerge);
    scratch_.previous.resize(count);
    scratch_.next.resize(count);
    for (uint32_t i = 0; i < count; ++i) {
      scratch_.previous[i] = i == 0 ? kNone : i - 1;
      scratch_.next[i] = i + 1 == count ? kNone : i + 1;
    }
    for (uint32_t i = 0; i + 1 < count; ++i) update_pair(i);
  }

  void run() {
    while (const std::optional<Candidate> candidate = queue_.pop()) {
      // Each pair has its own rank, so an entry is stale if its rank is not the pair's present rank.
      if (scratch_.merges[candidate->position].rank == candidate->rank) merge_at(candidate->position);
    }
    std::erase_if(symbols_, [](const Symbol& symbol) { return symbol.id < 0; });
  }

 private:
  void update_pair(uint32_t left) {
    const uint32_t right = scratch_.next[left];
    scratch_.merges[left] = right == kNone ? kNoMerge : merge_of(table_, symbols_[left], symbols_[right]);
    if (scratch_.merges[left].id >= 0) queue_.push({scratch_.merges[left].rank, left});
  }

  void merge_at(uint32_t left) {
    const uint32_t right = scratch_.next[left];
    symbols_[left] = {scratch_.merges[left].id, symbols_[left].begin, symbols_[right].end};
    symbols_[right].id = -1;
    scratch_.merges[right] = kNoMerge;
    const uint32_t after = scratch_.next[right];
    scratch_.next[left] = after;
    if (after != kNone) scratch_.previous[after] = left;
    update_pair(left);
    if (scratch_.previous[left] != kNone) update_pair(scratch_.previous[left]);
  }

  const MergeTable& table_;
  std::vector<Symbol>& symbols_;
  MergeScratch& scratch_;
  Queue queue_;
};

}  // namespace

MergeTable::MergeTable(size_t expected) : entries_(std::bit_ceil(2 * expected + 2)), mask_(entries_.size() - 1) {}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = key(left, right);
  size_t slot = first_slot(pair);
  while (entries_[slot].key != pair && entries_[slot].key != kEmpty) slot = (slot + 1) & mask_;
  size_ += entries_[slot].key == kEmpty;
  HONE_ASSERT(size_ < entries_.size(), "more merges than announced");
  entries_[slot] = {pair, merge};
}

void merge_symbols_scanning(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch) {
  std::vector<Merge>& merges = scratch.merges;  // merges symbol i with symbol i + 1
  merges.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) merges.push_back(merge_of(table, symbols[i], symbols[i + 1]));
  while (!merges.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < merges.size(); ++i)
      if (merges[i].rank < merges[best].rank) best = i;
    if (merges[best].id < 0) break;
    symbols[best] = {merges[best].id, symbols[best].begin, symbols[best + 1].end};
    symbols.erase(symbols.begin() + std::ptrdiff_t(best) + 1);
    merges.erase(merges.begin() + std::ptrdiff_t(best));
    if (best < merges.size()) merges[best] = merge_of(table, symbols[best], symbols[best + 1]);
    if (best > 0) merges[best - 1] = merge_of(table, symbols[best - 1], symbols[best]);
  }
}

void merge_symbols_with_heap(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch) {
  QueueMerger<CandidateHeap>(table, symbols, scratch).run();
}

void merge_symbols_by_rank(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch) {
  QueueMerger<RankQueues>(table, symbols, scratch).run();
}

void merge_symbols(const MergeTable& table, std::vector<Symbol>& symbols, MergeScratch& scratch) {
  constexpr size_t kScanningLimit = 32, kHeapLimit = 1 << 14;
  if (symbols.size() <= kScanningLimit) {
    merge_symbols_scanning(table, symbols, scratch);
  } else if (symbols.size() > kHeapLimit) {
    merge_symbols_by_rank(table, symbols, scratch);
  } else {
    merge_symbols_with_heap(table, symbols, scratch);
  }
}

}  // namespace hone
