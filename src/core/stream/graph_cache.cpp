#include "core/stream/graph_cache.h"

#include <algorithm>

#include "core/base/error.h"

namespace hone {

void GraphCache::run(const Key& key, const std::function<void()>& work) {
  const bool usable = use_ != GraphUse::kNever && stream_.device().kind == DeviceKind::kCuda &&
                      stream_.profiler() == nullptr && settled_();
  if (!usable) return call(work);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (found == entries_.end()) {
    entries_.push_front({key, nullptr});
    drop_oldest();
    return call(work);
  }
  entries_.splice(entries_.begin(), entries_, found);
  if (found->graph == nullptr) {
    found->graph = record(work);
    if (found->graph == nullptr) return call(work);
    drop_oldest();
    ++counts_.recorded;
  } else {
    ++counts_.replayed;
  }
  found->graph->launch();
}

void GraphCache::call(const std::function<void()>& work) {
  ++counts_.called;
  work();
}

std::unique_ptr<CudaGraph> GraphCache::record(const std::function<void()>& work) {
  try {
    return std::make_unique<CudaGraph>(stream_.cuda(), work);
  } catch (const Error&) {
    if (use_ == GraphUse::kAlways) throw;
    // This work cannot be recorded, or there is no memory for another graph: continue without graphs. A failed device
    // reports its error again at the next launch.
    use_ = GraphUse::kNever;
    return nullptr;
  }
}

void GraphCache::drop_oldest() {
  if (entries_.size() > kMostKeys) entries_.pop_back();
  const auto graphs =
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.graph != nullptr; });
  if (static_cast<size_t>(graphs) <= kMostGraphs) return;
  // The key goes too: it is recorded again after two more uses.
  const auto oldest =
      std::find_if(entries_.rbegin(), entries_.rend(), [](const Entry& e) { return e.graph != nullptr; });
  entries_.erase(std::next(oldest).base());
}

}  // namespace hone
