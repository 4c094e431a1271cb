// Blocks of a tensor that an optimizer reads as float32 and stores rounded: stochastically, if the tensor is bfloat16.
// rounded_vectors_cuda.h does the same on a GPU.
#pragma once

#include <algorithm>

#include "ops/row_math/row_blocks.h"
#include "ops/stochastic_rounding.h"

namespace hone {

/// Elements of a tensor that are worked on at once; the first is a multiple of 4.
struct Range {
  int64_t begin, count;
};

/// body(i, random 16 bits) for each element; `shift` says which half of the random words is its own.
template <class Body>
void for_each_rounded(Range range, uint64_t key, RoundingUse use, int shift, Body&& body) {
  for (int64_t first = 0; first < range.count; first += 4) {
    const auto words = rounding_words(key, range.begin + first, use);
    for (int64_t i = first; i < std::min(range.count, first + 4); ++i) {
      body(i, words[static_cast<size_t>(i - first)] >> shift & 0xffffu);
    }
  }
}

inline void store_bf16(const float* values, const Tensor& to, Range range, uint64_t key, RoundingUse use, int shift) {
  auto* const bits = reinterpret_cast<uint16_t*>(to.as<BFloat16>() + range.begin);
  for_each_rounded(range, key, use, shift,
                   [&](int64_t i, uint32_t random) { bits[i] = stochastic_bf16(values[i], random); });
}

/// Elements of a float32 or bfloat16 tensor as float32 that may be changed: in place, or in `buffer`.
inline float* load_rounded(const RowMath& math, const Tensor& x, Range range, float* buffer) {
  if (x.dtype == DType::kF32) return x.as<float>() + range.begin;
  math.widen(x.as<BFloat16>() + range.begin, buffer, range.count);
  return buffer;
}

/// Stores what load_rounded() gave, after it was changed; nothing where that was in place.
inline void store_rounded(const float* values, const Tensor& to, Range range, uint64_t key, RoundingUse use,
                          int shift) {
  if (to.dtype == DType::kBF16) store_bf16(values, to, range, key, use, shift);
}

}  // namespace hone
