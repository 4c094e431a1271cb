// Where the keys and values of generated sequences are: in pages of one pool, listed by a table.
#pragma once

#include <cstdint>

namespace hone {

/// Positions of a page: rows of keys, and of values. A tile of keys of any kernel is within a page.
inline constexpr int64_t kCachePage = 128;

/// Pages for `positions` positions from a page's first one on.
constexpr int64_t cache_pages(int64_t positions) { return (positions + kCachePage - 1) / kCachePage; }

/// The row of a sequence's position in [pages · kCachePage, …]; `pages` lists those of the sequence.
constexpr int64_t cache_row(const int32_t* pages, int64_t position) {
  return int64_t{pages[position / kCachePage]} * kCachePage + position % kCachePage;
}

}  // namespace hone
