// The gated delta rule on tensor cores, for bfloat16 heads of 128. With T = (I + A)⁻¹ (gated_delta_rule.h) each chunk
// has
//   W = T β exp(G) k      U = T β v      V = U − W S
// where W, U and P do not depend on the state, so they are computed for all chunks at once; the scan over states then
// computes V, out and the next state. Backward has the same two phases. Included by *_cuda.cu only.
//
// Tuned for Qwen3.5 and Qwen3-Next: 16 key heads and 32 value heads of 128. Chunks depend on each other, so kernels are
// bound by latency, not by tensor cores. One H200, 2026-11-22, 16,384 tokens, `hone bench ops --op gated_delta`:
// forward 0.86 ms (110 TFLOP/s, 15 % of a square product), both directions 3.52 ms for one document; 1.04 and 3.96 ms
// for 497 (flash-linear-attention 0.6.0: 1.07, 4.34, 2.24, 8.75). Raw: bench/results/h200-gated-delta-rule.txt.
// With one address of copies per thread backward takes 5 % less, on an H100, 2026-11-26: 2.65 instead of 2.79 ms, and
// 2.72 instead of 2.88 ms; forward of one document 1.5 % more (h100-gated-delta-rule-2026-11-26.txt).
// Tried and not kept: the state in registers from chunk to chunk, 64 columns a CTA, with one barrier a chunk: scans of
// one document take 1.4 times as long, of 4 x 4096 1.07, of 497 x 33 0.8 (h200-nemotron-gemma-2026-11-29.txt). What is
// left is in `grad` (1.1 of 2.5 ms) and `prepare` (0.37, in both directions), which repeat q kᵀ and k kᵀ for each value
// head.
#pragma once

#include "kernels/cuda/rows/document_tiles_cuda.h"
#include "kernels/cuda/sm80/warp_tiles_cuda.h"
#include "ops/gated_delta_rule/delta_rule_cuda.h"

namespace hone::cuda {

/// Dk and Dv of these kernels.
inline constexpr int kDeltaDim = 128;
static_assert(kTileRows == kDeltaRows);
/// Shared memory per CTA on every GPU of the tier: the smallest tiles of each kernel fit.
inline constexpr size_t kLeastDeltaShared = size_t{99} << 10;

/// Scale factors of one token and value head, for normalised rows and the state's decay.
struct alignas(16) DeltaScales {
  float query;  ///< exp(G) · Dk^-½ / |q|
  float key;    ///< exp(G_last − G) / |k|
  float grown;  ///< exp(G)
  float beta;
};

/// Intermediate results between the kernels. Rows are tokens.
struct DeltaScratch {
  Tensor scales;  ///< [T, Hv, 4] float32
  Tensor p;       ///< [T, Hv, 64]
  Tensor w;       ///< [T, Hv, 128]
  Tensor u;       ///< [T, Hv, 128]; in backward overwritten by V
  // Backward only.
  Tensor inverse;  ///< [T, Hv, 64]: T
  Tensor du;       ///< [T, Hv, 128]: minus the gradient of V
  /// [T / 64, Hv, 128, 128], see slot(): states before chunks, and gradients of the states after them.
  Tensor states, dstates;

  DeltaScratch(ArenaScope& memory, const DeltaRuleArgs& args, bool backward);
};

bool delta_chunks_serve(const Context& context, const DeltaRuleArgs& args);

/// Computes scales, p, w and u; and the inverse if its tensor is defined.
void prepare_delta_chunks(const Context& context, const DeltaRuleArgs& args, const DeltaScratch& scratch);
/// Computes out or, in backward, V and the states.
void scan_delta_chunks(const Context& context, const DeltaRuleArgs& args, const DeltaScratch& scratch);
/// Computes du and dstates.
void scan_delta_chunks_back(const Context& context, const DeltaRuleGradArgs& args, const DeltaScratch& scratch);
/// Computes the gradients of the inputs.
void delta_chunks_grad(const Context& context, const DeltaRuleGradArgs& args, const DeltaScratch& scratch);

/// The scratch as kernel arguments.
struct DeltaBuffers {
  DeltaScales* scales;
  __nv_bfloat16 *p, *w, *u, *inverse, *du, *states, *dstates;

  explicit DeltaBuffers(const DeltaScratch& scratch)
      : scales(reinterpret_cast<DeltaScales*>(scratch.scales.data)),
        p(elements<__nv_bfloat16>(scratch.p)),
        w(elements<__nv_bfloat16>(scratch.w)),
        u(elements<__nv_bfloat16>(scratch.u)),
        inverse(elements<__nv_bfloat16>(scratch.inverse)),
        du(elements<__nv_bfloat16>(scratch.du)),
        states(elements<__nv_bfloat16>(scratch.states)),
        dstates(elements<__nv_bfloat16>(scratch.dstates)) {}
};

#ifdef __CUDACC__

/// Slot of the state between chunks c and c + 1 of the document that starts at `begin`; the states of all documents
/// have different slots, T / 64 in all.
__device__ inline int64_t delta_slot(int64_t begin, int64_t chunk, int heads, int head) {
  return ((begin / kDeltaRows + chunk) * heads + head) * (kDeltaDim * kDeltaDim);
}

/// Computes G of a chunk with the first warp: g[i] becomes the sum up to i. The caller must synchronise.
__device__ inline void sum_gates(float* g) {
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  const float first = g[2 * lane], pair = first + g[2 * lane + 1];
  float sum = pair;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  const float before = sum - pair;
  g[2 * lane] = before + first;
  g[2 * lane + 1] = sum;
}

#endif  // __CUDACC__

}  // namespace hone::cuda
