// latent_heads: keys and values of multi-head latent attention, from the up-projected latent and the RoPE key that all
// heads share. Source: DeepSeek-AI, "DeepSeek-V2" (arXiv:2405.04434), section 2.1.
#pragma once

#include "tape/tape.h"

namespace hone {

/// H heads; a key has N dimensions of its own and R shared ones, a value has V.
struct LatentHeadSizes {
  int64_t heads = 0, nope_dim = 0, rope_dim = 0, v_dim = 0;

  int64_t kv_width() const { return heads * (nope_dim + v_dim); }
  int64_t k_width() const { return heads * (nope_dim + rope_dim); }
  int64_t v_width() const { return heads * v_dim; }
};

/// Per token t and head h:  k[t, h] = [kv[t, h, :N] | shared[t]],  v[t, h] = kv[t, h, N:]. All have the same dtype,
/// float32 or bfloat16; values are copied unchanged.
struct LatentHeadsArgs {
  Tensor kv;      ///< [T, H·(N + V)], per head the key's part and the value
  Tensor shared;  ///< [T, R]
  Tensor k;       ///< [T, H·(N + R)]
  Tensor v;       ///< [T, H·V]
  LatentHeadSizes sizes;
};

/// dkv[t, h] = [dk[t, h, :N] | dv[t, h]],  dshared[t] = Σ_h dk[t, h, N:]. The sum is float32, in a fixed order, rounded
/// once. Either is optional.
struct LatentHeadsGradArgs {
  Tensor dk, dv;
  GradDest dkv, dshared;
  LatentHeadSizes sizes;
};

void latent_heads(const Context& context, const LatentHeadsArgs& args);
void latent_heads_grad(const Context& context, const LatentHeadsGradArgs& args);

struct KeysAndValues {
  Var k, v;
};

/// Records k and v, both of which must be used. Backward saves nothing.
KeysAndValues latent_heads(Tape& tape, Var kv, Var shared, const LatentHeadSizes& sizes);

namespace cpu {
void latent_heads(const Context& context, const LatentHeadsArgs& args);
void latent_heads_grad(const Context& context, const LatentHeadsGradArgs& args);
}  // namespace cpu

namespace cuda {
void latent_heads(const Context& context, const LatentHeadsArgs& args);
void latent_heads_grad(const Context& context, const LatentHeadsGradArgs& args);
}  // namespace cuda

}  // namespace hone
