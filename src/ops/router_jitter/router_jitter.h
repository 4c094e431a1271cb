// router_jitter: multiplicative noise on the input of a MoE layer in training (Mixtral's router_jitter_noise). Source:
// Fedus et al., "Switch Transformers" (arXiv:2101.03961), section 2.2.
#pragma once

#include "kernels/lora_dropout.h"
#include "tape/tape.h"

namespace hone {

/// Parameters of the noise. It is a pure function of the step's seed, the layer, the sample, the position in it and the
/// feature, so recomputation, packing, resume and the number of ranks do not change it.
struct RouterJitter {
  float noise = 0;          ///< ε, in (0, 1)
  uint32_t layer = 0;       ///< separates the layers' numbers
  LoraDropoutContext rows;  ///< identifies the rows
};

/// The key of a layer's numbers; its high word differs from those of adapters (kernels/lora_dropout.h).
HONE_HOST_DEVICE inline uint64_t router_jitter_key(uint64_t seed, uint32_t layer) {
  return mix_key(seed, (uint64_t{0xffffffffu} << 32) | layer);
}

/// u = 1 - ε + 2 ε · uniform for features 4 · feature_group … + 3 of one row.
HONE_HOST_DEVICE inline std::array<float, 4> router_jitter_factors(uint64_t key, float noise, int64_t sample_id,
                                                                   int32_t position, uint32_t feature_group) {
  const auto words = lora_words(key, sample_id, position, feature_group);
  std::array<float, 4> factors{};
  for (size_t i = 0; i < 4; ++i) factors[i] = 1.0f - noise + 2.0f * noise * to_uniform(words[i]);
  return factors;
}

/// y[t, h] = x[t, h] · u[t, h] + beta · y, rounded once. x and y [T, H] have the same dtype, float32 or bfloat16; y may
/// be x. The gradient is the same product with dy.
struct RouterJitterArgs {
  Tensor x, y;
  float beta = 0.0f;  ///< 0 or 1
  RouterJitter jitter;
};

void router_jitter(const Context& context, const RouterJitterArgs& args);

/// Records y = x ∘ u. Backward saves nothing: it draws u again.
Var router_jitter(Tape& tape, Var x, const RouterJitter& jitter);

namespace cpu {
void router_jitter(const Context& context, const RouterJitterArgs& args);
}

namespace cuda {
void router_jitter(const Context& context, const RouterJitterArgs& args);
}

}  // namespace hone
