// The state-space scan on tensor cores, for bfloat16 heads of 64 with states of 128. In the terms of ssd_scan.h:
//   steps     Δ and G of every token, once
//   states    a CTA per document and head carries S in registers, float32, from chunk to chunk and stores it before
//             each, in bfloat16
//   outputs   C Bᵀ once for a block of a group's heads; then exp(G) C S + P x + D x for each
// Backward, with E = dout xᵀ and Z the gradient of the state after the chunk:
//   states    also Z, from the last chunk to the first
//   values    dx = Δ (P'ᵀ dout + exp(G_last − G) B Z) + D dout, P' = P without Δ; sums of E P' over rows and columns;
//             and Σ over heads of E exp(G_i − G_j) Δ_j, the gradient of C Bᵀ
//   keys      dC = exp(G) dout Sᵀ and dB = exp(G_last − G) Δ x Zᵀ, summed over heads, and their part by C Bᵀ
//   finish    the gradients of G, Δ and the weights
//
// Rounding: x, B, C and dout are exact operands. Each product has at most one operand that is rounded to bfloat16,
// once: P, P', S, Z or the gradient of C Bᵀ; factors that a row of a result has in common are applied to its float32
// sum. What is added to S and Z is split into two bfloat16, as exact as 2^-17. Only Σ S ∘ Z, of which the gradient of
// G_last has a part, has both rounded. Exponents are differences of float32 sums of g. Included by *_cuda.cu only.
//
// One H200, 16,384 tokens, 48 heads in one group: forward 0.31 ms, backward 0.76 ms (mamba-ssm's Triton kernels 0.75
// and 2.55, in the same call); one document of them 0.53 and 0.89, since a CTA then walks 256 chunks. Forward moves 0.7
// GB and backward 1.7 GB: 0.15 and 0.35 ms at 4.8 TB/s. Three CTAs a multiprocessor for `values` spill: 0.26 ms, not
// 0.19. Raw: bench/results/h200-ssd-scan-2026-11-29.txt.
#pragma once

#include "kernels/cuda/sm80/warp_tiles_cuda.h"
#include "ops/ssd_scan/ssd_scan_cuda.h"

namespace hone::cuda {

/// Row strides of tiles in shared memory.
inline constexpr int kSsdWide = padded(kSsdSize), kSsdNarrow = padded(kSsdDim);
/// Shared memory per CTA on every GPU of the tier.
inline constexpr size_t kLeastSsdShared = size_t{99} << 10;

void scan_ssd_chunks(cudaStream_t stream, const SsdScanArgs& args, const SsdChunkScratch& scratch);
/// All gradients but those of weights, whose sums over each chunk go to `parts`.
void scan_ssd_chunks_back(cudaStream_t stream, const SsdScanGradArgs& args, const SsdWeightParts& parts,
                          const SsdChunkScratch& scratch);
/// Computes the steps and states, and if `dout` is not null the gradients of states.
void find_ssd_chunk_states(cudaStream_t stream, const SsdScanArgs& args, const __nv_bfloat16* dout,
                           const SsdChunkScratch& scratch);

/// Steps of the tokens of one chunk and head. Tokens that the chunk lacks have Δ = 0 and the last one's G.
struct alignas(16) SsdSteps {
  float sums[kSsdTokens];   ///< G, in units of log 2
  float delta[kSsdTokens];  ///< Δ
  float grown[kSsdTokens];  ///< exp(G); 0 for tokens that the chunk lacks
  float into[kSsdTokens];   ///< exp(G_last − G) Δ
};

/// What `values` and `keys` find for the gradients of G and Δ, for the tokens of one chunk and head.
struct SsdParts {
  float reads[kSsdWarps][kSsdTokens];  ///< Σ_j E_ij P_ij, j < i, for j of each 16 tokens
  float inner[kSsdTokens];             ///< Σ_i E_ij P'_ij, i > j
  float diagonal[kSsdTokens];          ///< E_jj P'_jj
  float after[kSsdTokens];             ///< exp(G_last − G_j) x_j · B_j Z
  float skipped[kSsdTokens];           ///< E_jj
  float before[kSsdTokens];            ///< exp(G_i) dout_i · C_i S
};
static_assert(sizeof(SsdParts) == kSsdParts * kSsdTokens * sizeof(float));

/// The scratch as kernel arguments.
struct SsdChunkBuffers {
  SsdSteps* steps;
  __nv_bfloat16 *states, *dstates, *pairs;
  float* keys;
  SsdParts* parts;
  float* kept;
  int blocks, shared_heads;  ///< blocks of a group's heads, and the heads of each (but the last)

  SsdChunkBuffers(const SsdHeads& heads, const SsdChunkScratch& scratch)
      : steps(reinterpret_cast<SsdSteps*>(scratch.steps.data)),
        states(elements<__nv_bfloat16>(scratch.states)),
        dstates(elements<__nv_bfloat16>(scratch.dstates)),
        pairs(elements<__nv_bfloat16>(scratch.pairs)),
        keys(elements<float>(scratch.keys)),
        parts(reinterpret_cast<SsdParts*>(scratch.parts.data)),
        kept(elements<float>(scratch.kept)),
        blocks(static_cast<int>(ssd_shared_blocks(heads))),
        shared_heads(static_cast<int>((heads.group() + blocks - 1) / blocks)) {}
};

#ifdef __CUDACC__

/// B and C of a chunk.
struct SsdKeyTiles {
  Half b[kSsdTokens * kSsdWide], c[kSsdTokens * kSsdWide];
};

/// The chunk and block of heads of a CTA; blocks of one chunk are neighbours, which share B and C in L2.
struct SsdBlock {
  SsdPlace place;
  int64_t item;
  int group, block, begin, end;  ///< heads [begin, end)

  __device__ SsdBlock(const SsdArguments<Half>& in, const SsdChunkBuffers& buffers, int64_t cta) {
    block = static_cast<int>(cta % buffers.blocks);
    group = static_cast<int>(cta / buffers.blocks % in.groups);
    item = cta / (int64_t{buffers.blocks} * in.groups);
    const int of_group = in.heads / in.groups;
    begin = group * of_group + block * buffers.shared_heads;
    end = min(begin + buffers.shared_heads, (group + 1) * of_group);
    place = in.place(item);
  }
};

/// Starts a copy of a head's steps.
template <int kThreads>
__device__ inline void copy_steps(SsdSteps& to, const SsdSteps& from) {
  constexpr int kPieces = sizeof(SsdSteps) / 16;
  static_assert(kPieces <= kThreads);
  const int piece = static_cast<int>(threadIdx.x);
  if (piece < kPieces) {
    cp_async_16(shared_address(&to) + static_cast<uint32_t>(piece * 16), reinterpret_cast<const uint4*>(&from) + piece,
                true);
  }
}

#endif

}  // namespace hone::cuda
