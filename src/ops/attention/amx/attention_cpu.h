// Attention of bfloat16 on a CPU with AMX.
#pragma once

#include "core/cpu/cpu_features.h"
#include "kernels/cpu/gemm/amx_tiles.h"
#include "ops/attention/attention.h"
#include "ops/attention/vector/attention_block.h"

namespace hone::cpu {

/// Whether the functions below support these activations on this machine.
inline bool attends_on_amx(const AttentionArgs& args) {
  return active_isa() == Isa::kAmx && args.q.dtype == DType::kBF16 && args.options.scale > 0.0f;
}

void attention_on_amx(const Context& context, const AttentionArgs& args);
void attention_backward_on_amx(const Context& context, const AttentionBackwardArgs& args);

/// Heads of packed sequences as tiles: [heads][slabs of all sequences][tiles of a slab]. Each sequence starts a new
/// slab.
class PackedHeads {
 public:
  PackedHeads() = default;
  PackedHeads(ArenaScope& memory, int64_t heads, int64_t slabs, int64_t tiles_of_slab)
      : memory_(memory.take({heads, slabs * tiles_of_slab, amx::kTileBytes}, DType::kU8)),
        slab_bytes_(tiles_of_slab * amx::kTileBytes) {}
  std::byte* slab(int64_t head, int64_t slab) const {
    return memory_.data + head * memory_.shape[1] * amx::kTileBytes + slab * slab_bytes_;
  }

 private:
  Tensor memory_;
  int64_t slab_bytes_ = 0;
};

/// Tile layouts of a slab's rows.
enum class SlabForm {
  kRowsLeft,      ///< rows are lanes of a left operand: [2 panels of rows][steps of dim]
  kRowsRight,     ///< rows are lanes of a right operand: as above, in pairs
  kColumnsLeft,   ///< elements are lanes of a left operand, the product sums over rows: [panels of dim]
  kColumnsRight,  ///< elements are lanes of a right operand: as above, in pairs
};

/// Packs rows [rows, dim] of a head; if the product sums over rows or elements, those beyond the end are zero.
void pack_slab(const MatrixView& head, int64_t rows, int64_t dim, SlabForm form, std::byte* tiles);

/// Number of slabs of T tokens in documents: document n starts at slab first_slab(its first row, n).
inline int64_t slab_capacity(int64_t tokens, int64_t documents) { return tokens / amx::kDepth + documents; }
inline int64_t first_slab(int64_t first_row, int64_t document) { return first_row / amx::kDepth + document; }

}  // namespace hone::cpu
