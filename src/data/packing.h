// Packing: which samples share a micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hone {

struct PackLimits {
  int64_t max_tokens = 0;     ///< of a pack
  int64_t max_documents = 0;  ///< of a pack
};

/// Best fit over consecutive windows of `window` samples: within a window, longest first, each sample goes to the
/// fullest pack that still has room. Packs come in the order of their earliest sample, documents inside a pack in the
/// order of `lengths`, so the result is a pure function of its arguments and stays close to the given order. No sample
/// is longer than max_tokens. Returns the indices of each pack.
/// Source: best-fit decreasing, Johnson (1973); for training, Ding et al. (arXiv:2404.10830).
std::vector<std::vector<int64_t>> pack_best_fit(std::span<const int64_t> lengths, const PackLimits& limits,
                                                int64_t window);

/// `per_pack` consecutive samples a pack: no packing.
std::vector<std::vector<int64_t>> pack_in_order(int64_t samples, int64_t per_pack);

}  // namespace hone
