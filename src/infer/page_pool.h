// PagePool: the pages of a cache that sequences hold, and those that are kept for what they contain.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <span>
#include <vector>

#include "ops/attention/cache_pages.h"

namespace hone {

/// Sequences of one beginning can hold the same pages: a full page that is published is found by the tokens up to its
/// end. When nobody holds it any longer it stays as it is until the page is needed, those that were left first before
/// others. A page that is free is taken before them, the lowest first, so a sequence that is alone where nothing is
/// published always has the same pages (GeneratorOptions::keep_cache).
class PagePool {
 public:
  explicit PagePool(int64_t pages);

  /// Pages that nobody holds.
  int64_t count() const { return static_cast<int64_t>(free_.size() + idle_.size()); }
  /// One of them, which the caller then holds alone. There must be one.
  int32_t take();
  /// Ends one hold. A sequence gives its last page first, so that none is kept after the one before it.
  void give(int32_t page);

  /// The published page of these kCachePage tokens after the page `before` (kNone: the first page), which the caller
  /// holds; it then holds the page, too.
  std::optional<int32_t> find(int variant, int32_t before, std::span<const int32_t> tokens);
  /// Publishes a page that the caller holds and nobody writes to again, in the same terms; `before` is published. False
  /// if another one has its place.
  bool publish(int32_t page, int variant, int32_t before, std::span<const int32_t> tokens);
  /// Forgets what pages contain.
  void forget();

  static constexpr int32_t kNone = -1;

 private:
  /// What a page contains. The tokens before are those of another page, which cannot be taken as long as somebody holds
  /// this one, and is left after it.
  struct Contents {
    int variant;
    int32_t before;
    std::vector<int32_t> tokens;
    auto operator<=>(const Contents&) const = default;
  };
  using Published = std::map<Contents, int32_t>;
  struct Page {
    int holds = 0;
    bool published = false;
    Published::iterator contents = {};
    uint64_t left = 0;  // when the last hold ended
  };

  std::vector<Page> pages_;
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;
  std::map<uint64_t, int32_t> idle_;  // published and held by nobody, by the time when they were left
  Published published_;
  uint64_t time_ = 0;
};

}  // namespace hone
