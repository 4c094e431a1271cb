// One part of the keys of a sequence that adds one token, on tensor cores: scores and the sum of values of up to 16
// heads that share keys. The keys of a part, then its values, come by cp.async in tiles of 64 rows through one ring, so
// the first values are under way while the softmax runs.
//
//   scores   A: heads (registers), B: keys. Of a tile each warp has 8 keys.
//   values   A: probabilities, B: values. Of each 64 columns a warp has 8, of all keys: no sums meet.
//
// 64 sequences with 640 keys, 32/4 heads of 128, on one H200: the ceiling is the memory's rate. Loads of operands from
// global memory straight to registers reached a third of it: a warp had too few of them under way, and none during the
// softmax (bench/results/h200-decode-2026-11-30.txt).
// Included by *_cuda.cu only.
#pragma once

#include "kernels/cuda/ptx_cuda.h"
#include "ops/attention/cached/decoding_cuda.h"

namespace hone::cuda {

/// The largest head that decode_part_tensor_kernel is compiled for.
inline constexpr int kMostTensorDim = 256;

/// Whether decode_part_tensor_kernel supports these head sizes, of at most kMostTensorDim: rows are units of 16 bytes.
inline bool tensor_cores_serve(int head_dim, int v_head_dim) { return head_dim % 8 == 0 && v_head_dim % 8 == 0; }

/// Shared memory of a CTA: a ring of tiles, then the scores of 16 heads, in whose place their probabilities come.
template <int kDim>
struct DecodeMemory {
  static constexpr int kHeads = 16, kKeys = 64;                           ///< rows of a tile
  static constexpr int kUnits = kDim / 8, kTileBytes = kKeys * kDim * 2;  ///< a row is kUnits times 16 bytes
  static constexpr int kStages = kDim > 128 ? 2 : 48 * 1024 / kTileBytes;
  static constexpr int kStride = kPartKeys + 4;  ///< floats of a head's scores: eight rows of ldmatrix in other banks
  static constexpr int kBytes = kStages * kTileBytes + kHeads * kStride * 4;
};

#ifdef __CUDACC__

template <int kDim>
__global__ void __launch_bounds__(kDecodeThreads, kDim > 128 ? 2 : 3)
    decode_part_tensor_kernel(DecodingArgs<__nv_bfloat16> args) {
  using Memory = DecodeMemory<kDim>;
  constexpr int kHeads = Memory::kHeads, kKeys = Memory::kKeys, kUnits = Memory::kUnits, kStages = Memory::kStages;
  extern __shared__ __align__(128) std::byte shared[];
  auto* const scores = reinterpret_cast<float(*)[Memory::kStride]>(shared + kStages * Memory::kTileBytes);
  const uint32_t ring = shared_address(shared), probabilities = shared_address(scores);
  const int part = blockIdx.x, kv_head = blockIdx.y, n = blockIdx.z, dim = args.head_dim, v_dim = args.v_head_dim;
  const auto part_keys = args.keys_of(n, part);
  const int keys = part_keys.count;
  if (keys <= 0) return;

  const int group = args.num_heads / args.num_kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4, tiles = (keys + kKeys - 1) / kKeys;
  // Where a unit of a row of a tile is: eight rows of one unit are in different banks.
  const auto address_of = [&](int stage, int row, int unit) {
    return ring + static_cast<uint32_t>(stage * Memory::kTileBytes + row * kDim * 2 + (unit ^ row % 8) * 16);
  };
  // Copies tile i of the ring's sequence: the keys', then the values'. Rows and columns that do not exist are zeros.
  const auto load = [&](int i) {
    const bool of_keys = i < tiles;
    const int width = of_keys ? dim : v_dim, first = (of_keys ? i : i - tiles) * kKeys;
    const __nv_bfloat16* from = (of_keys ? args.k : args.v) + kv_head * width;
    const int64_t stride = int64_t{args.num_kv_heads} * width;
    if (i < 2 * tiles) {
#pragma unroll
      for (int j = 0; j < kKeys * kUnits / kDecodeThreads; ++j) {
        const int at = static_cast<int>(threadIdx.x) + j * kDecodeThreads, row = at / kUnits, unit = at % kUnits;
        const bool exists = first + row < keys && 8 * unit < width;
        cp_async_16(address_of(i % kStages, row, unit),
                    exists ? from + part_keys.row(first + row) * stride + 8 * unit : from, exists);
      }
    }
    cp_async_commit();  // an empty group at the end, so that waiting counts alike
  };
  // Waits for tile i, and frees the stage of the one before for the next load.
  const auto next_tile = [&](int i) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    load(i + kStages - 1);
  };

  for (int done = 0; done < group; done += kHeads) {
    const int heads = min(group - done, kHeads), head = kv_head * group + done;
    const int64_t at = (int64_t{n} * args.num_heads + head) * args.parts + part;  // index of the first head's part
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) load(i);
    const __nv_bfloat16* q = args.q + (int64_t{args.cu_seqlens[n]} * args.num_heads + head) * dim;
    uint32_t q_of[kDim / 16][4];  // rows g and g + 8 of a product's 16 heads, columns 2 t of its two halves
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int row = g + x % 2 * 8, column = 16 * i + x / 2 * 8 + 2 * t;
        q_of[i][x] = row < heads && column < dim ? *reinterpret_cast<const uint32_t*>(q + row * dim + column) : 0;
      }
    }
    for (int tile = 0; tile < tiles; ++tile) {
      next_tile(tile);
      float s[4] = {};
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        uint32_t k[4];
        ldmatrix_x4(k, address_of(tile % kStages, 8 * warp + lane % 8, 4 * i + lane / 8));
        mma_m16n8k16(s, q_of[2 * i], k[0], k[1]);
        mma_m16n8k16(s, q_of[2 * i + 1], k[2], k[3]);
      }
      const int column = tile * kKeys + 8 * warp + 2 * t;
      *reinterpret_cast<float2*>(&scores[g][column]) = {args.scale * s[0], args.scale * s[1]};
      *reinterpret_cast<float2*>(&scores[g + 8][column]) = {args.scale * s[2], args.scale * s[3]};
    }
    __syncthreads();
    for (int of = warp; of < heads; of += kDecodeWarps) {
      const PartSoftmax softmax = softmax_of(scores[of], keys);
      softmax.write(args.stats + 2 * (at + int64_t{of} * args.parts));
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kPartKeys / 64; ++i) {
        reinterpret_cast<uint32_t*>(scores[of])[lane + 32 * i] = pack_bf16(softmax.p[i].x, softmax.p[i].y);
      }
    }
    float sums[kUnits / kDecodeWarps][4] = {};
    for (int tile = 0; tile < tiles; ++tile) {
      next_tile(tiles + tile);
#pragma unroll
      for (int half = 0; half < kKeys / 32; ++half) {
        uint32_t p[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = tile * kKeys + half * 32 + 16 * i + lane / 16 * 8;
          ldmatrix_x4(p[i], probabilities + static_cast<uint32_t>(lane % 16 * Memory::kStride * 4 + key * 2));
        }
#pragma unroll
        for (int i = 0; i < kUnits / kDecodeWarps; ++i) {
          uint32_t v[4];
          ldmatrix_x4_trans(v, address_of((tiles + tile) % kStages, half * 32 + lane, warp + i * kDecodeWarps));
          mma_m16n8k16(sums[i], p[0], v[0], v[1]);
          mma_m16n8k16(sums[i], p[1], v[2], v[3]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kUnits / kDecodeWarps; ++i) {
      const int column = 8 * (warp + i * kDecodeWarps) + 2 * t;
      float* out = args.sums + at * v_dim + column;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (g + 8 * row >= heads || column >= v_dim) continue;
        *reinterpret_cast<float2*>(out + int64_t{g + 8 * row} * args.parts * v_dim) = {sums[i][2 * row],
                                                                                       sums[i][2 * row + 1]};
      }
    }
    __syncthreads();
  }
  join_parts<kDim>(args, n, kv_head);
}

#endif  // __CUDACC__

}  // namespace hone::cuda
