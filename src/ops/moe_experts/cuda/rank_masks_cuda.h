// Masks of expert adapters, as arguments of the kernels of rank_products_cuda.h. Included by *_cuda.cu only.
#pragma once

#include "core/stream/cuda_launch.h"
#include "ops/moe_experts/cuda/rank_products_cuda.h"

namespace hone::cuda {

/// Adapter i has columns [8 first[i], 8 last[i]) of J, and its mask; count 0 without dropout.
struct RankMasks {
  const uint8_t* bits[kMaxRankSlices] = {};
  int first[kMaxRankSlices] = {}, last[kMaxRankSlices] = {};
  int count = 0;
  int64_t stride = 0;

#ifdef __CUDACC__
  __device__ const uint8_t* row(int slice, int64_t r) const { return bits[slice] + r * stride; }
#endif
};

inline RankMasks rank_masks(const std::vector<RankSlice>& slices) {
  RankMasks masks;
  for (const RankSlice& slice : slices) {
    if (!slice.mask.defined()) return {};
    masks.bits[masks.count] = slice.mask.as<uint8_t>();
    masks.first[masks.count] = static_cast<int>(slice.begin / 8);
    masks.last[masks.count++] = static_cast<int>((slice.begin + slice.rank + 7) / 8);
    masks.stride = slice.mask.shape[1];
  }
  return masks;
}

#ifdef __CUDACC__

/// The lowest 8 bits as masks of 8 bfloat16.
__device__ inline uint4 element_bits(uint32_t byte) {
  const auto pair = [&](int i) {
    const uint32_t low = 0u - (byte >> i & 1u), high = 0u - (byte >> (i + 1) & 1u);
    return (low & 0xFFFFu) | (high & 0xFFFF0000u);
  };
  return make_uint4(pair(0), pair(2), pair(4), pair(6));
}

#endif  // __CUDACC__

}  // namespace hone::cuda
