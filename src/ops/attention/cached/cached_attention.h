// cached_attention: attention of new tokens to themselves and to the keys and values of earlier passes, for generation.
#pragma once

#include "ops/attention/attention.h"
#include "ops/attention/cache_pages.h"

namespace hone {

/// Keys and values of N sequences, and the tokens that a pass adds to them. Each layer has its own k and v; all layers
/// share lengths and the added offsets, those of one window also the pages. Row t of sequence n is the token at
/// position lengths[n] + t − cu_seqlens[n]. Position p of a sequence is row p % kCachePage of its page p / kCachePage.
struct KvCache {
  Tensor k;               ///< [pages, kCachePage, Hkv·D] dtype of the activations; rows of earlier tokens are set
  Tensor v;               ///< [pages, kCachePage, Hkv·Dv] same; a pass of several tokens may zero rows after the last
  Tensor pages;           ///< [N, P] int32: the pages of each sequence, none that of another one; those that no new
                          ///< token attends to may be any
  Tensor lengths;         ///< [N] int32: tokens of earlier passes
  PackedSequences added;  ///< new tokens, num_documents = N; a sequence may add none. lengths[n] + new <= capacity()
                          ///< (checked on a CPU, as pages are)

  /// The most positions of a sequence.
  int64_t capacity() const { return pages.shape[1] * kCachePage; }
};

/// Writes the rows of k and v at their positions into the cache; then each row attends to the cached positions up to
/// its own (formula and window: attention.h). Used for a prefill of many tokens and for decoding steps of one token
/// each. Without a window the results of a row do not depend on how tokens are divided into passes, except that on a
/// GPU a pass with one token sums in another order than one with several; they never depend on the other sequences or
/// the number of threads. Lengths are not advanced: see advance_cache(). Scratch on a GPU: Hq (Dv + 2) floats per 256
/// positions of the capacity, a counter a key-value head; with sinks and on Hopper lse [Hq, T], there also lists of
/// tiles.
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
