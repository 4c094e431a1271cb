// cached_attention: attention of new tokens to themselves and to the keys and values of earlier passes, for generation.
#pragma once

#include "ops/attention/attention.h"

namespace hone {

/// Keys and values of N sequences, and the tokens that a pass adds to them. One layer has one k and v; all layers share
/// lengths and the added offsets. Row t of sequence n is the token at position lengths[n] + t − cu_seqlens[n].
struct KvCache {
  Tensor k;               ///< [N, capacity, Hkv·D] dtype of the activations; rows below lengths[n] are set
  Tensor v;               ///< [N, capacity, Hkv·Dv] same
  Tensor lengths;         ///< [N] int32: tokens of earlier passes
  PackedSequences added;  ///< new tokens, num_documents = N; a sequence may add none. lengths[n] + new <= capacity
                          ///< (checked on a CPU)
};

/// Writes the rows of k and v at their positions into the cache; then each row attends to the cached positions up to
/// its own (see attention.h for the formula and the window). Serves a prefill of many tokens and a decoding step of one
/// token each. Without a window the bits of a row do not depend on the cuts between passes, except that on a GPU a pass
/// that adds one token sums in another order than one that adds several; they never depend on the other sequences or
/// the number of threads. Lengths are not advanced: see advance_cache(). Scratch on a GPU: Hq (Dv + 2) floats for every
/// 256 positions of the cache's capacity; with sinks lse [Hq, T].
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

/// lengths[n] += tokens that sequence n has added; once a pass, after its last layer.
struct AdvanceCacheArgs {
  Tensor lengths;  ///< [N] int32
  PackedSequences added;
};
void advance_cache(const Context& context, const AdvanceCacheArgs& args);

/// Runs the above on a tape that does not train. `sinks` [Hq] may be null.
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
