// The gated delta rule on tensor cores, for bfloat16 heads of 128. With T = (I + A)⁻¹ (gated_delta_rule.h) each chunk
// has
//   W = T β exp(G) k      U = T β v      V = U − W S
// of which W, U and P do not depend on the state, so that all chunks form them at once; what follows one state after
// another is then V, out and the next state. Backward goes the same two ways. Included by *_cuda.cu only.
#pragma once

#include "kernels/cuda/rows/document_tiles_cuda.h"
#include "ops/gated_delta_rule/delta_rule_cuda.h"
#include "ops/gated_delta_rule/delta_tiles_cuda.h"

namespace hone::cuda {

/// Dk and Dv of these kernels.
inline constexpr int kDeltaDim = 128;
static_assert(kTileRows == kDeltaRows);
/// Shared memory that every GPU of the tier lets a CTA have: the smallest tiles of each kernel fit.
inline constexpr size_t kLeastDeltaShared = size_t{99} << 10;

/// Factors of one token and value head, from which normalised rows and the state's decay follow.
struct alignas(16) DeltaScales {
  float query;  ///< exp(G) · Dk^-½ / |q|
  float key;    ///< exp(G_last − G) / |k|
  float grown;  ///< exp(G)
  float beta;
};

/// What passes between the kernels. Rows are tokens.
struct DeltaScratch {
  Tensor scales;  ///< [T, Hv, 4] float32
  Tensor p;       ///< [T, Hv, 64]
  Tensor w;       ///< [T, Hv, 128]
  Tensor u;       ///< [T, Hv, 128]; in backward V takes its place
  // Backward alone.
  Tensor inverse;  ///< [T, Hv, 64]: T
  Tensor du;       ///< [T, Hv, 128]: minus the gradient of V
  /// [T / 64, Hv, 128, 128], see slot(): states before chunks, and gradients of states behind them.
  Tensor states, dstates;

  DeltaScratch(ArenaScope& memory, const DeltaRuleArgs& args, bool backward);
};

bool delta_chunks_serve(const Context& context, const DeltaRuleArgs& args);

/// scales, p, w and u; and the inverse if there is a place for it.
void prepare_delta_chunks(const Context& context, const DeltaRuleArgs& args, const DeltaScratch& scratch);
/// out, or (backward) V and the states.
void scan_delta_chunks(const Context& context, const DeltaRuleArgs& args, const DeltaScratch& scratch);
/// du and dstates.
void scan_delta_chunks_back(const Context& context, const DeltaRuleGradArgs& args, const DeltaScratch& scratch);
/// The gradients of the inputs.
void delta_chunks_grad(const Context& context, const DeltaRuleGradArgs& args, const DeltaScratch& scratch);

/// The scratch as kernels see it.
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

/// Lets a kernel have so much dynamic shared memory.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "reserving shared memory for the delta rule");
}

#ifdef __CUDACC__

/// Place of the state between chunks c and c + 1 of the document that begins at `begin`: the states of all documents
/// have different slots, of which there are T / 64.
__device__ inline int64_t delta_slot(int64_t begin, int64_t chunk, int heads, int head) {
  return ((begin / kDeltaRows + chunk) * heads + head) * (kDeltaDim * kDeltaDim);
}

/// G of a chunk, by the first warp: g[i] becomes the sum up to i. A barrier is the caller's.
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
