#include "infer/page_pool.h"

#include "core/base/error.h"

namespace hone {

PagePool::PagePool(int64_t pages) : pages_(static_cast<size_t>(pages)) {
  for (int64_t page = 0; page < pages; ++page) free_.push(static_cast<int32_t>(page));
}

int32_t PagePool::take() {
  int32_t page = kNone;
  if (!free_.empty()) {
    page = free_.top();
    free_.pop();
  } else {
    page = idle_.begin()->second;
    idle_.erase(idle_.begin());
    Page& taken = pages_[static_cast<size_t>(page)];
    published_.erase(taken.contents);
    taken.published = false;
  }
  pages_[static_cast<size_t>(page)].holds = 1;
  return page;
}

void PagePool::give(int32_t page) {
  Page& given = pages_[static_cast<size_t>(page)];
  HONE_ASSERT(given.holds > 0);
  if (--given.holds > 0) return;
  if (!given.published) return free_.push(page);
  given.left = ++time_;
  idle_.emplace(given.left, page);
}

std::optional<int32_t> PagePool::find(int variant, int32_t before, std::span<const int32_t> tokens) {
  const auto at = published_.find({variant, before, {tokens.begin(), tokens.end()}});
  if (at == published_.end()) return std::nullopt;
  Page& page = pages_[static_cast<size_t>(at->second)];
  if (page.holds++ == 0) idle_.erase(page.left);
  return at->second;
}

bool PagePool::publish(int32_t page, int variant, int32_t before, std::span<const int32_t> tokens) {
  Page& own = pages_[static_cast<size_t>(page)];
  HONE_ASSERT(own.holds > 0 && !own.published && tokens.size() == size_t{kCachePage});
  const auto [at, is_new] = published_.emplace(Contents{variant, before, {tokens.begin(), tokens.end()}}, page);
  if (!is_new) return false;
  own.published = true;
  own.contents = at;
  return true;
}

void PagePool::forget() {
  published_.clear();
  for (Page& page : pages_) page.published = false;
  for (const auto& [left, page] : idle_) free_.push(page);
  idle_.clear();
}

}  // namespace hone
