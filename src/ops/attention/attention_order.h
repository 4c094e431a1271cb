// The order of attention's tiles and heads on a GPU, as far as the host chooses it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/attention/attention.h"

namespace hone {

/// The key-value heads whose tiles are processed before those of the next ones: as many as have keys and values of a
/// third of L2 in all documents together, and a divisor of their number. CTAs read those over and over, and L2 keeps
/// them beside the queries and gradients that go through it. On an H200 (60 MB) a third was the best of the powers of
/// two for heads of 64, 128, 256, and 192 with values of 128, forward and backward.
inline int64_t kv_heads_at_a_time(size_t l2_bytes, const AttentionArgs& args) {
  const int64_t kv_heads = args.options.num_kv_heads;
  const auto bytes = static_cast<int64_t>(args.k.bytes() + args.v.bytes()) / kv_heads;
  const int64_t fit = static_cast<int64_t>(l2_bytes) / 3 / std::max<int64_t>(bytes, 1);
  int64_t heads = std::clamp<int64_t>(fit, 1, kv_heads);
  while (kv_heads % heads != 0) --heads;
  return heads;
}

}  // namespace hone
