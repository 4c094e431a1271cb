// Blocks of a tensor that an optimizer reads as float32 and stores rounded, stochastically if the tensor is bfloat16.
// GPU version: rounded_vectors_cuda.h.
#pragma once

#include <algorithm>

#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/stochastic_rounding.h"

namespace hone {

/// Elements of a tensor that are processed together; first_element + begin is a multiple of 4.
struct Range {
  int64_t begin, count;
  int64_t first_element = 0;  ///< global index of the tensor's first element, for the random numbers
};

/// rounding_words() of a range's elements, for one use.
class RangeWords {
 public:
  RangeWords(const RowMath& math, Range range, uint64_t key, RoundingUse use) {
    HONE_ASSERT(range.count <= kRowBlock);
    math.random_words(key, static_cast<uint64_t>(range.first_element + range.begin) / 4, static_cast<uint32_t>(use),
                      nullptr, words_, (range.count + 3) / 4);
  }
  const uint32_t* data() const { return words_; }
  /// The 16 bits of element i from bit `shift` on.
  uint32_t bits(int64_t i, int shift) const { return words_[i] >> shift & 0xffffu; }

 private:
  uint32_t words_[kRowBlock];
};

/// Elements of a float32 or bfloat16 tensor as modifiable float32: in place, or copied to `buffer`.
inline float* load_rounded(const RowMath& math, const Tensor& x, Range range, float* buffer) {
  if (x.dtype == DType::kF32) return x.as<float>() + range.begin;
  math.widen(x.as<BFloat16>() + range.begin, buffer, range.count);
  return buffer;
}

/// Stores the modified values of load_rounded(); does nothing if they are in place.
inline void store_rounded(const RowMath& math, const float* values, const Tensor& to, Range range, uint64_t key,
                          RoundingUse use) {
  if (to.dtype != DType::kBF16) return;
  const RangeWords words(math, range, key, use);
  math.narrow_randomly(values, words.data(), 0, to.as<BFloat16>() + range.begin, range.count);
}

}  // namespace hone
