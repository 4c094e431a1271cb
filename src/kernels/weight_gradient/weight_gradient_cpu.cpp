#include <algorithm>

#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/stochastic_rounding.h"
#include "kernels/weight_gradient/weight_gradient.h"

namespace hone::cpu {

namespace {

/// Adds elements [begin, begin + count) of src and dst; begin is a multiple of 4.
void add(const RowMath& math, const StoreGradientArgs& args, uint64_t key, int64_t begin, int64_t count) {
  const float* const src = args.src.as<float>() + begin;
  float sums[kRowBlock];
  math.widen(args.dst.dst.as<BFloat16>() + begin, sums, count);
  math.add(sums, src, sums, count);
  uint32_t salts[kRowBlock / 4], words[kRowBlock];
  for (int64_t first = 0; first < count; first += 4) {
    float addends[4] = {};
    std::copy(src + first, src + std::min(count, first + 4), addends);
    salts[first / 4] = salt_of(addends);
  }
  math.random_words(key, static_cast<uint64_t>(begin) / 4, static_cast<uint32_t>(RoundingUse::kGradient), salts, words,
                    (count + 3) / 4);
  math.narrow_randomly(sums, words, 0, args.dst.dst.as<BFloat16>() + begin, count);
}

}  // namespace

void store_gradient(const Context& context, const StoreGradientArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const RowMath& math = row_math();
    const bool adds = args.dst.beta != 0.0f;
    const uint64_t key = adds ? mix_key(args.rounding.scalars->seed, args.rounding.stream_id) : 0;
    parallel_blocks(pool, args.src.numel(), [&](int64_t begin, int64_t count) {
      if (adds) return add(math, args, key, begin, count);
      math.narrow(args.src.as<float>() + begin, args.dst.dst.as<BFloat16>() + begin, count);
    });
  });
}

}  // namespace hone::cpu
