// CachePlan: the sizes of a generator's cache. Keys and values are in pages of kCachePage positions, which sequences
// take as they grow; recurrent states are a slot for each sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "infer/generation_schedule.h"
#include "nn/decoder.h"

namespace hone {

struct GeneratorOptions;

struct CachePlan {
  /// The tensors of a layer, each with its count as the first dimension.
  struct Layer {
    std::vector<CacheTensor> tensors;
    std::optional<size_t> group;  ///< whose pages they are; unset: a row for each sequence
  };

  std::vector<Layer> layers;
  std::vector<PageGroup> groups;  ///< ascending windows
  int64_t max_pages = 0;          ///< pages of a sequence at most
  int64_t bytes = 0;

  /// Layers without a window have as many pages as all sequences can need, or those of options.cache_tokens. Layers
  /// with one need those that it reaches and those of a pass, so they never lack any.
  CachePlan(const Decoder& decoder, const GeneratorOptions& options);

  /// Whether pages hold all that layers keep of a sequence, each up to its own last token: sequences that begin alike
  /// can share them. Not where a window gives pages back, or a state is not that of a page's end.
  bool pages_hold_all() const;
  /// Whether some layer attends to all tokens: options.cache_tokens then decides how many there may be.
  bool bounded_by_tokens() const { return !groups.empty() && groups.front().window == 0; }
  /// The group of the layers that keep the most tokens. There must be one.
  size_t largest() const { return bounded_by_tokens() ? 0 : groups.size() - 1; }
};

}  // namespace hone
