// Shared by the kernels of low_rank: tensor-core products of bfloat16 fragments that are loaded with 16 bytes per
// thread, with dropout.
//
// mma.m16n8k16 takes four elements of k from a thread that are not adjacent. Since both operands may permute k in the
// same way, the kernels number k so that a thread's elements are contiguous in memory.
#pragma once

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/low_rank/low_rank_cuda.h"
#include "kernels/cuda/ptx_cuda.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda {

/// Dropout arguments of kernels.
struct RowMask {
  const StepScalars* scalars = nullptr;
  const int64_t* samples = nullptr;
  const int32_t* positions = nullptr;
  float probability = 0;
  uint32_t stream_id = 0;

  RowMask() = default;
  explicit RowMask(const LoraDropout& dropout) {
    if (dropout.probability <= 0.0f) return;
    scalars = dropout.rows.scalars;
    samples = dropout.rows.sample_ids.as<int64_t>();
    positions = dropout.rows.positions.as<int32_t>();
    probability = dropout.probability;
    stream_id = dropout.stream_id;
  }
};

struct LowRankShape {
  int64_t rows = 0;  ///< T
  int columns = 0;   ///< N, a multiple of 8
  int rank = 0;
};

/// Whether the tensor-core kernels support the product. With dropout they beat cuBLAS, which needs extra passes to drop
/// features.
inline bool low_rank_kernels_fit(const Context& context, const Tensor& wide, int64_t rank, int64_t most_ranks) {
  return kernel_tiers(context).low_rank == Tier::kSm80 && wide.dtype == DType::kBF16 && wide.shape[1] % 8 == 0 &&
         wide.shape[1] <= INT32_MAX / 2 && wide.numel() > 0 && rank <= most_ranks && rank > 0;
}

inline LowRankShape low_rank_shape(const Tensor& wide, int64_t rank) {
  HONE_ASSERT(reinterpret_cast<uintptr_t>(wide.data) % 16 == 0);
  return {wide.shape[0], static_cast<int>(wide.shape[1]), static_cast<int>(rank)};
}

/// Maximum rank for which each kernel beats cuBLAS with dropout; without dropout only one kernel does.
inline constexpr int64_t kMostNarrowRanks = 64, kMostWidenRanks = 64, kMostFactorRanks = 32;
inline constexpr int64_t kMostWidenRanksUndropped = 32;

void low_rank_narrow_kernels(const Context& context, const LowRankNarrowArgs& args);
void low_rank_widen_kernels(const Context& context, const LowRankWidenArgs& args);
void low_rank_factor_kernels(const Context& context, const LowRankFactorArgs& args);

/// to[a, b] = from[a, b] in bfloat16, zero-padded where `from` [A, B] (or, transposed, [B, A]) has no element.
void pad_factor(const Context& context, const Tensor& from, bool transposed, const Tensor& to);

#ifdef __CUDACC__

/// Loads 8 bfloat16, or zeros.
__device__ inline uint4 load_eight(const __nv_bfloat16* address, bool inside) {
  return inside ? __ldg(reinterpret_cast<const uint4*>(address)) : make_uint4(0, 0, 0, 0);
}

/// A row of the mask.
struct MaskRow {
  int64_t sample = 0;
  int32_t position = 0;
};

__device__ inline MaskRow mask_row(const RowMask& mask, int64_t row) {
  return {mask.samples[row], mask.positions[row]};
}

/// Bits of the kept features among column … column + 7 (`column` is a multiple of 4).
__device__ inline uint4 keep_bits(const RowMask& mask, uint64_t key, const MaskRow& row, int column) {
  const uint32_t kept_from = lora_kept_from(mask.probability);
  const auto group = static_cast<uint32_t>(column / 4);
  const auto a = lora_words(key, row.sample, row.position, group),
             b = lora_words(key, row.sample, row.position, group + 1);
  const auto bits = [&](uint32_t low, uint32_t high) {
    return (low >= kept_from ? 0xFFFFu : 0u) | (high >= kept_from ? 0xFFFF0000u : 0u);
  };
  return make_uint4(bits(a[0], a[1]), bits(a[2], a[3]), bits(b[0], b[1]), bits(b[2], b[3]));
}

__device__ inline uint4 masked(const uint4& values, const uint4& bits) {
  return make_uint4(values.x & bits.x, values.y & bits.y, values.z & bits.z, values.w & bits.w);
}

#endif  // __CUDACC__

}  // namespace hone::cuda
