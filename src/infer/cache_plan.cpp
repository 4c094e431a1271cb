#include "infer/cache_plan.h"

#include <algorithm>

#include "infer/generator.h"
#include "ops/attention/cache_pages.h"

namespace hone {

namespace {

Shape of_many(int64_t count, const Shape& one) {
  Shape shape{count};
  for (int i = 0; i < one.rank(); ++i) shape.push_back(one[i]);
  return shape;
}

}  // namespace

CachePlan::CachePlan(const Decoder& decoder, const GeneratorOptions& options)
    : max_pages(cache_pages(options.max_length)) {
  // A kept prefix may end before what the window of the last token reaches.
  const auto window_of = [&](const CacheTensor& tensor) { return options.keep_cache ? 0 : *tensor.window; };
  for (std::vector<CacheTensor>& tensors : decoder.cache()) {
    Layer& layer = layers.emplace_back(Layer{.tensors = std::move(tensors), .group = {}});
    if (layer.tensors.empty() || !layer.tensors.front().window) continue;
    const int64_t window = window_of(layer.tensors.front());
    const auto ascending = [](const PageGroup& group, int64_t of_window) { return group.window < of_window; };
    const auto at = std::lower_bound(groups.begin(), groups.end(), window, ascending);
    if (at == groups.end() || at->window != window) groups.insert(at, {.window = window, .pages = 0});
  }
  const int64_t sequences = options.max_sequences;
  const auto group_of = [&](int64_t window) {
    const auto same = [&](const PageGroup& group) { return group.window == window; };
    return static_cast<size_t>(std::find_if(groups.begin(), groups.end(), same) - groups.begin());
  };
  int64_t most = sequences * max_pages;
  if (bounded_by_tokens() && options.cache_tokens > 0) most = std::min(most, cache_pages(options.cache_tokens));
  for (PageGroup& group : groups) {
    group.pages = most;
    if (group.window == 0) continue;
    // For each sequence those of a window, which begins and ends within a page, and one that a pass begins.
    group.pages = std::min(
        most, sequences * (cache_pages(group.window) + 2) + cache_pages(options.max_prefill_tokens + sequences));
  }
  for (Layer& layer : layers) {
    for (CacheTensor& tensor : layer.tensors) {
      if (tensor.window) layer.group = group_of(window_of(tensor));
      tensor.shape = of_many(layer.group ? groups[*layer.group].pages : sequences, tensor.shape);
      bytes += tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype));
    }
  }
}

bool CachePlan::pages_hold_all() const {
  return groups.size() == 1 && groups[0].window == 0 &&
         std::all_of(layers.begin(), layers.end(),
                     [](const Layer& layer) { return layer.tensors.empty() || layer.group.has_value(); });
}

}  // namespace hone
