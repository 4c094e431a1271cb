// The scratch memory of the state-space scan on a GPU, in builds with CUDA and without, and which kernels take it.
#pragma once

#include "kernels/cuda/tiers.h"
#include "ops/ssd_scan/ssd_scan.h"

namespace hone::cuda {

/// P, N and the tokens of a chunk of the kernels by chunks, and warps of a CTA, each with 16 of the tokens.
inline constexpr int kSsdDim = 64, kSsdSize = 128, kSsdTokens = static_cast<int>(kSsdChunk);
inline constexpr int kSsdWarps = kSsdTokens / 16;
/// Numbers per token and head from which backward finds the gradients of steps (SsdParts).
inline constexpr int kSsdParts = kSsdWarps + 5;
/// Heads of one group that share a CTA of these kernels, at most.
inline constexpr int64_t kSsdSharedHeads = 12;

/// Whether the kernels by chunks on tensor cores (ssd_chunks_cuda.h) serve the arguments, if tensors are aligned.
inline bool ssd_chunks_serve(const Context& context, const SsdScanArgs& args) {
  return kernel_tiers(context).ssd_scan == Tier::kSm80 && args.xbc.dtype == DType::kBF16 &&
         args.heads.head_dim == kSsdDim && args.heads.state_size == kSsdSize && !args.state.s.defined();
}

/// Tokens of a chunk: what a CTA of the general kernels holds fits in the 99 KiB of shared memory that every GPU has.
inline int64_t ssd_rows(const SsdScanArgs& args) { return args.xbc.dtype == DType::kBF16 ? kSsdChunk : kSsdChunk / 2; }

/// Chunks of all documents: document n's begin at item cu_seqlens[n] / ssd_rows() + n.
inline int64_t ssd_items(const SsdScanArgs& args) {
  return args.xbc.shape[0] / ssd_rows(args) + args.sequences.num_documents;
}

/// States before chunks. A document's, of its second, third, … chunk, have slots from cu_seqlens[n] / ssd_rows() on, so
/// all documents' slots differ.
inline Shape ssd_states(const SsdScanArgs& args) {
  const SsdHeads& heads = args.heads;
  return {args.xbc.shape[0] / ssd_rows(args), heads.num_heads, heads.state_size, heads.head_dim};
}

/// Blocks of at most kSsdSharedHeads heads in a group.
inline int64_t ssd_shared_blocks(const SsdHeads& heads) {
  return (heads.group() + kSsdSharedHeads - 1) / kSsdSharedHeads;
}

/// Scratch of the kernels by chunks.
struct SsdChunkScratch {
  Tensor steps;   ///< [items, H, 4, 64] float32: SsdSteps
  Tensor states;  ///< ssd_states(), bfloat16
  // Backward only.
  Tensor dstates;  ///< the same for the gradients Z of the states after chunks
  Tensor pairs;    ///< [items, G · blocks, 64, 64] bfloat16: transposed gradients of C Bᵀ
  Tensor keys;     ///< [blocks, T, 2GN] float32: dB and dC of each block, if there are several
  Tensor parts;    ///< [items, H, kSsdParts, 64] float32: SsdParts
  Tensor kept;     ///< [items, H, kSsdWarps] float32: sums of S ∘ Z

  static SsdChunkScratch take(ArenaScope& memory, const SsdScanArgs& args, bool backward) {
    const int64_t items = ssd_items(args), heads = args.heads.num_heads, blocks = ssd_shared_blocks(args.heads);
    SsdChunkScratch scratch;
    scratch.steps = memory.take({items, heads, 4, kSsdTokens}, DType::kF32);
    scratch.states = memory.take(ssd_states(args), DType::kBF16);
    if (!backward) return scratch;
    scratch.dstates = memory.take(ssd_states(args), DType::kBF16);
    scratch.pairs = memory.take({items, args.heads.num_groups * blocks, kSsdTokens, kSsdTokens}, DType::kBF16);
    if (blocks > 1) scratch.keys = memory.take({blocks, args.xbc.shape[0], 2 * args.heads.keys()}, DType::kF32);
    scratch.parts = memory.take({items, heads, kSsdParts, kSsdTokens}, DType::kF32);
    scratch.kept = memory.take({items, heads, kSsdWarps}, DType::kF32);
    return scratch;
  }
};

/// Scratch of the general kernels.
struct SsdGeneralScratch {
  Tensor states;  ///< ssd_states(), float32
  Tensor growth;  ///< [items, H] float32: exp(Σ g) of each chunk but the last of a document
  // Backward only.
  Tensor dstates;  ///< gradients of the states
  Tensor keys;     ///< [blocks, T, 2GN] float32: dB and dC of each block of heads

  static SsdGeneralScratch take(ArenaScope& memory, const SsdScanArgs& args, bool backward) {
    SsdGeneralScratch scratch;
    scratch.states = memory.take(ssd_states(args), DType::kF32);
    scratch.growth = memory.take({ssd_items(args), args.heads.num_heads}, DType::kF32);
    if (!backward) return scratch;
    scratch.dstates = memory.take(ssd_states(args), DType::kF32);
    scratch.keys = memory.take({args.heads.blocks(), args.xbc.shape[0], 2 * args.heads.keys()}, DType::kF32);
    return scratch;
  }
};

/// Sums of the gradients of weights over each chunk: [items, H] float32, undefined if not wanted.
struct SsdWeightParts {
  Tensor a_log, dt_bias, d;

  static SsdWeightParts take(ArenaScope& memory, const SsdScanGradArgs& args) {
    const auto part = [&](const GradDest& weight) {
      const Shape shape{ssd_items(args.forward), args.forward.heads.num_heads};
      return weight.wanted() ? memory.take(shape, DType::kF32) : Tensor{};
    };
    SsdWeightParts parts;
    parts.a_log = part(args.da_log);
    parts.dt_bias = part(args.ddt_bias);
    parts.d = part(args.dd);
    return parts;
  }
};

}  // namespace hone::cuda
