// attention: causal softmax attention over packed documents, with grouped key-value heads, an optional window, and
// optional sinks.
#pragma once

#include "ops/packed_sequences.h"
#include "tape/tape.h"

namespace hone {

struct AttentionOptions {
  int64_t num_heads = 0;       ///< Hq, a multiple of Hkv; heads [g·Hq/Hkv, (g+1)·Hq/Hkv) share key-value head g
  int64_t num_kv_heads = 0;    ///< Hkv
  int64_t head_dim = 0;        ///< D of queries and keys
  int64_t v_head_dim = 0;      ///< Dv of values and outputs
  float scale = 0.0f;          ///< factor of the scores, usually 1 / sqrt(D)
  int64_t sliding_window = 0;  ///< position i attends to j if i − window < j <= i; 0: all j <= i
};

/// For head h with key-value head g, and row i of a document, over the rows j of the same document that i attends to:
///   s_ij = scale · q_i·k_j     lse_i = log Σ_j exp(s_ij)     out_i = Σ_j exp(s_ij − lse_i) v_j
/// Computed in blocks of float32 scores, never a T x T matrix (Dao, "FlashAttention-2", arXiv:2307.08691). For
/// bfloat16, tensor cores and AMX round P and dS (below) to bfloat16 as operands of products; GPUs compute dS from the
/// rounded P. Blocks start at the document's first row, so results of a document depend neither on its pack nor on the
/// number of threads. Scratch: CPU: a constant number of blocks per thread, a small record per block of queries, and
/// tiles of k and v for AMX; GPU: a few integers per document.
struct AttentionArgs {
  Tensor q;           ///< [T, Hq·D] float32 or bfloat16
  Tensor k;           ///< [T, Hkv·D]
  Tensor v;           ///< [T, Hkv·Dv]
  Tensor out;         ///< [T, Hq·Dv], dtype of q
  Tensor lse;         ///< [Hq, T] float32, natural logarithm
  Tensor sinks = {};  ///< [Hq] or undefined: a further logit in the denominator of out and lse (attention_sinks.h)
  AttentionOptions options;
  PackedSequences sequences;
};

/// Gradients of q, k, v and sinks (each optional), with P_ij = exp(s_ij − lse_i), dP_ij = dout_i·v_j and δ_i =
/// dout_i·out_i:
///   dS = P (dP − δ),  dq = scale · dS k,  dk = scale · dSᵀ q,  dv = Pᵀ dout.
/// Sums over blocks have a fixed order. Scratch: as forward, plus δ [Hq, T], and for bfloat16 float32 gradients on a
/// CPU, dq on tensor cores of a GPU, tiles of q and dout for AMX.
struct AttentionBackwardArgs {
  AttentionArgs forward;
  Tensor dout;  ///< [T, Hq·Dv], dtype of q
  GradDest dq, dk, dv;
  GradDest dsinks = {};  ///< [Hq] float32
};

void attention(const Context& context, const AttentionArgs& args);
void attention_backward(const Context& context, const AttentionBackwardArgs& args);

/// Records out = attention(q, k, v). Backward saves q, k, v, out and lse. `sinks` [Hq] may be null.
Var attention(Tape& tape, Var q, Var k, Var v, const AttentionOptions& options, const PackedSequences& sequences,
              Weight* sinks = nullptr);

namespace cpu {
void attention(const Context& context, const AttentionArgs& args);
void attention_backward(const Context& context, const AttentionBackwardArgs& args);
}  // namespace cpu

namespace cuda {
void attention(const Context& context, const AttentionArgs& args);
void attention_backward(const Context& context, const AttentionBackwardArgs& args);
}  // namespace cuda

}  // namespace hone
