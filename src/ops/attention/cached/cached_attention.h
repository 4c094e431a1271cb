// cached_attention: attention of new tokens to themselves and to the keys and values of earlier passes, for generation.
#pragma once

#include "ops/attention/attention.h"

namespace hone {

/// With capacities that are multiples of this, every kernel of a GPU serves.
inline constexpr int64_t kCacheBlock = 128;

/// Keys and values of N sequences, and the tokens that a pass adds to them. Each layer has its own k and v; all layers
/// share lengths and the added offsets. Row t of sequence n is the token at position lengths[n] + t − cu_seqlens[n].
struct KvCache {
  Tensor k;               ///< [N, capacity, Hkv·D] dtype of the activations; rows below lengths[n] are set
  Tensor v;               ///< [N, capacity, Hkv·Dv] same; a pass of several tokens may zero rows from there on
  Tensor lengths;         ///< [N] int32: tokens of earlier passes
  PackedSequences added;  ///< new tokens, num_documents = N; a sequence may add none. lengths[n] + new <= capacity
                          ///< (checked on a CPU)
};

/// Writes the rows of k and v at their positions into the cache; then each row attends to the cached positions up to
/// its own (formula and window: attention.h). Used for a prefill of many tokens and for decoding steps of one token
/// each. Without a window the results of a row do not depend on how tokens are divided into passes, except that on a
/// GPU a pass with one token sums in another order than one with several; they never depend on the other sequences or
/// the number of threads. Lengths are not advanced: see advance_cache(). Scratch on a GPU: Hq (Dv + 2) floats per 256
/// positions of the cache's capacity; with sinks and on Hopper lse [Hq, T], there also lists of tiles.
struct CachedAttentionArgs {
  Tensor q;           ///< [T, Hq·D] float32 or bfloat16
  Tensor k;           ///< [T, Hkv·D]
  Tensor v;           ///< [T, Hkv·Dv]
  Tensor out;         ///< [T, Hq·Dv]
  Tensor sinks = {};  ///< [Hq] or undefined, as in attention
  AttentionOptions options;
  KvCache cache;
};

void cached_attention(const Context& context, const CachedAttentionArgs& args);

/// lengths[n] += tokens added to sequence n; called once per pass, after its last layer.
struct AdvanceCacheArgs {
  Tensor lengths;  ///< [N] int32
  PackedSequences added;
};
void advance_cache(const Context& context, const AdvanceCacheArgs& args);

/// Runs the above on an inference tape. `sinks` [Hq] may be null.
Var cached_attention(Tape& tape, Var q, Var k, Var v, const AttentionOptions& options, const KvCache& cache,
                     Weight* sinks = nullptr);

namespace cpu {
void cached_attention(const Context& context, const CachedAttentionArgs& args);
void advance_cache(const Context& context, const AdvanceCacheArgs& args);
}  // namespace cpu

namespace cuda {
void cached_attention(const Context& context, const CachedAttentionArgs& args);
void advance_cache(const Context& context, const AdvanceCacheArgs& args);
}  // namespace cuda

}  // namespace hone
