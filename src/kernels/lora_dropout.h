// Dropout on the input of a LoRA adapter: chooses which features of a row are kept. The choice is a pure function of
// the step's seed, the adapter, the sample, the position in it, the expert and the feature. So recomputation, packing,
// resume and the number of ranks do not change it, and backward draws it again instead of storing it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/philox.h"
#include "core/base/tensor.h"
#include "tape/step_scalars.h"

namespace hone {

/// Identifies the rows x [T, in] for dropout. Read on the device; null or undefined if dropout is 0.
struct LoraDropoutContext {
  const StepScalars* scalars = nullptr;  ///< device memory: the seed
  Tensor sample_ids;                     ///< i64 [T]: global index of the row's sample
  Tensor positions;                      ///< i32 [T]: position of the row in its sample
};

/// Dropout of one adapter in one launch. `rows` describes the rows of x.
struct LoraDropout {
  float probability = 0;
  uint32_t stream_id = 0;
  LoraDropoutContext rows;  ///< read only if probability > 0
};

/// The factor of kept features. Multiply it into the adapter's scaling (y += scaling · keep_scale · (mask ∘ x) Aᵀ Bᵀ)
/// rather than into x: then mask ∘ x is exact in bfloat16.
HONE_HOST_DEVICE inline float lora_keep_scale(float dropout) { return 1.0f / (1.0f - dropout); }

/// The key of one adapter's random numbers; expert is 0 for a dense weight. Computed once per (launch, expert), not per
/// row.
HONE_HOST_DEVICE inline uint64_t lora_dropout_key(uint64_t seed, uint32_t stream_id, uint32_t expert = 0) {
  return mix_key(seed, (uint64_t{expert} << 32) | stream_id);
}

/// The random words of features 4 · feature_group … + 3 of one row.
HONE_HOST_DEVICE inline std::array<uint32_t, 4> lora_words(uint64_t key, int64_t sample_id, int32_t position,
                                                           uint32_t feature_group) {
  const auto sample = static_cast<uint64_t>(sample_id);
  return philox(key, {static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32),
                      static_cast<uint32_t>(position), feature_group});
}

/// The least word of a kept feature: its upper 24 bits, as a fraction, are at least `dropout`.
HONE_HOST_DEVICE inline uint32_t lora_kept_from(float dropout) {
  return static_cast<uint32_t>(ceilf(dropout * 0x1p24f)) << 8;
}

/// 1 for kept, 0 for dropped, for features 4 · feature_group … + 3 of one row. A feature is dropped with probability
/// `dropout` (24 bits).
HONE_HOST_DEVICE inline std::array<float, 4> lora_keep(uint64_t key, float dropout, int64_t sample_id, int32_t position,
                                                       uint32_t feature_group) {
  const auto words = lora_words(key, sample_id, position, feature_group);
  const uint32_t kept_from = lora_kept_from(dropout);
  std::array<float, 4> keep{};
  for (size_t i = 0; i < 4; ++i) keep[i] = words[i] >= kept_from ? 1.0f : 0.0f;
  return keep;
}

/// dst[i] = mask[i] · src[i] + beta · dst[i] for the n features of one row. beta is 0 (dst is not read) or 1; dst may
/// equal src.
template <class T, class U>
void lora_drop_row(uint64_t key, float dropout, int64_t sample_id, int32_t position, const T* src, U* dst, int64_t n,
                   float beta = 0.0f) {
  for (int64_t begin = 0; begin < n; begin += 4) {
    const auto keep = lora_keep(key, dropout, sample_id, position, static_cast<uint32_t>(begin / 4));
    const int64_t count = n - begin < 4 ? n - begin : 4;
    for (int64_t i = 0; i < count; ++i) {
      const float kept = keep[static_cast<size_t>(i)] != 0.0f ? static_cast<float>(src[begin + i]) : 0.0f;
      dst[begin + i] = U(beta != 0.0f ? kept + static_cast<float>(dst[begin + i]) : kept);
    }
  }
}

}  // namespace hone
