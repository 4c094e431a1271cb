// Products whose rows are sorted by group, C = A · Bᵀ (+ extra), on Hopper: the producer, the consumers, and an
// epilogue as template parameter. Included by *_cuda.cu only.
#pragma once

#include <type_traits>

#include "kernels/cuda/grouped_gemm/grouped_gemm.h"
#include "kernels/cuda/grouped_gemm/hopper_pipeline_cuda.h"
#include "kernels/cuda/grouped_gemm/hopper_strip_cuda.h"

namespace hone::cuda::sm90 {

constexpr int kHalfN = kTileN / 2;

/// The operands. Rows of A are loaded by TMA, or by cp.async if a_rows is given: TMA on Hopper cannot gather rows.
struct ProductFactors {
  CUtensorMap a, w, extra_a, extra_w;
  const int64_t* offsets = nullptr;
  const __nv_bfloat16* gathered = nullptr;  // [·, K]
  const int32_t* a_rows = nullptr;          // [R] or null
  int groups = 0;
  int n = 0, k = 0, extra_k = 0;
  int k_steps = 0, extra_steps = 0;
  /// A tile of kTileN columns has two halves of consecutive columns; the second starts half_distance after the first.
  /// So a tile can hold matching columns of gate and up.
  int n_tiles = 0, tile_columns = 0, half_distance = 0;
  int half_lines = kHalfN;  ///< rows of K-major weights that a half has in shared memory
  /// Matrices of w for each group: 1, or two side by side along n, gate and up, of which a tile's halves are.
  int matrices = 1;
  /// With 8-bit floats, which the maps describe as pairs, k, k_steps and the boxes count 2 codes as one element.
  const float* a_scales = nullptr;  ///< those of A's rows
  const float* w_scales = nullptr;  ///< the matrices', w_scale_pitch apart; null: 1
  int w_scale_pitch = 0;

  __device__ int first_column(const PairTile& tile) const { return tile.n_tile * tile_columns; }
  __device__ int matrix(const PairTile& tile, int half) const {
    return tile.group * matrices + (matrices == 2 ? half : 0);
  }
  __device__ float w_scale(const PairTile& tile, int half) const {
    return w_scales == nullptr ? 1.0f : w_scales[matrix(tile, half) * w_scale_pitch];
  }
};

/// The producer warpgroup: fills stages with 64 of k of A (this CTA's rows) and of B (one half, multicast to both CTAs
/// of the pair; the other CTA loads the other half).
template <bool kBColumns, int kColumns>
class ProductLoader {
 public:
  __device__ ProductLoader(const ProductFactors& factors, const SharedMemory& shared, int rank)
      : f_(factors), shared_(shared), rank_(rank) {}

  __device__ void run(RowTiles tiles) {
    const bool gather = f_.a_rows != nullptr;
    const bool first_warp = threadIdx.x % 128 < 32;
    if (!gather && !first_warp) return;
    PairTile tile;
    while (tiles.next(tile)) {
      if (gather) find_rows(tile);
      for (int step = 0; step < f_.k_steps; ++step) {
        barrier_wait(shared_.empty(at_.stage), at_.phase ^ 1);
        if (first_warp && elect_one()) load(tile, step * kTileK, gather);
        if (gather) gather_rows(step * kTileK);
        at_.advance();
      }
      for (int step = 0; step < f_.extra_steps; ++step) {
        barrier_wait(shared_.empty(at_.stage), at_.phase ^ 1);
        if (first_warp && elect_one()) load_extra(tile, step * kTileK);
        if (gather) barrier_arrive(shared_.full(at_.stage));
        at_.advance();
      }
    }
  }

 private:
  static constexpr int kRowsApart = 16, kRowsEach = kTileM / kRowsApart;  // 8 threads copy a line of 128 bytes

  __device__ static int blocks(const PairTile& tile) { return (tile.m_count + kBlockM - 1) / kBlockM; }

  __device__ void load(const PairTile& tile, int k, bool gather) {
    // MN-major: only the columns of the tile. K-major: always two halves of kHalfN.
    const int bytes = kBColumns ? kColumns * kTileK * 2 : 2 * f_.half_lines * kLineBytes;
    expect_and_load_a(f_.a, tile, k, gather ? 0 : blocks(tile), bytes);
    if constexpr (kBColumns) {
      load_halves(tile, [&](int half, auto copy) {
#pragma unroll
        for (int block = 0; block < kColumns / 64; ++block) {  // 32 of the 64 lines, a line for each k
          copy(f_.w, f_.first_column(tile) + 64 * block, k + 32 * half, tile.group,
               block * kLineBlockBytes + half * (kLineBlockBytes / 2));
        }
      });
    } else {
      load_halves(tile, [&](int half, auto copy) {
        copy(f_.w, k, f_.first_column(tile) + half * f_.half_distance, f_.matrix(tile, half),
             half * f_.half_lines * kLineBytes);
      });
    }
  }
  __device__ void load_extra(const PairTile& tile, int k) {
    expect_and_load_a(f_.extra_a, tile, k, blocks(tile), kBBytes);
    load_halves(tile, [&](int half, auto copy) {
      copy(f_.extra_w, k, f_.first_column(tile) + half * f_.half_distance, tile.group, half * (kBBytes / 2));
    });
  }

  __device__ void expect_and_load_a(const CUtensorMap& map, const PairTile& tile, int k, int a_blocks, int b_bytes) {
    if (!tile.shared && tile.m_count == 0) b_bytes = 0;
    const uint32_t full = shared_.full(at_.stage), a = shared_.a(at_.stage);
    barrier_arrive_expect(full, static_cast<uint32_t>(b_bytes + a_blocks * kLineBlockBytes));
    for (int block = 0; block < a_blocks; ++block) {
      copy_box(map, k, tile.m_begin + block * kBlockM, 0, a + static_cast<uint32_t>(block * kLineBlockBytes), full);
    }
  }

  /// Calls load(half, copy) for this CTA's half of B if the pair shares B, else for both halves; copy(map, column, row,
  /// matrix, to) copies a box to an offset in B.
  template <class Load>
  __device__ void load_halves(const PairTile& tile, Load load) {
    const uint32_t full = shared_.full(at_.stage), b = shared_.b(at_.stage);
    if (tile.shared) {
      load(rank_, [&](const CUtensorMap& map, int column, int row, int matrix, int to) {
        copy_box_to_cluster(map, column, row, matrix, b + static_cast<uint32_t>(to), full, kBothBlocks);
      });
    } else if (tile.m_count > 0) {
      for (int half = 0; half < 2; ++half) {
        load(half, [&](const CUtensorMap& map, int column, int row, int matrix, int to) {
          copy_box(map, column, row, matrix, b + static_cast<uint32_t>(to), full);
        });
      }
    }
  }

  __device__ static int line() { return static_cast<int>(threadIdx.x % 128) / 8; }
  __device__ static int unit() { return static_cast<int>(threadIdx.x) % 8; }

  __device__ void find_rows(const PairTile& tile) {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int row = line() + i * kRowsApart;
      const int from = row < tile.m_count ? f_.a_rows[tile.m_begin + row] : 0;
      units_[i] = static_cast<uint32_t>(from) * static_cast<uint32_t>(f_.k / 8) + static_cast<uint32_t>(unit());
    }
    rows_ = tile.m_count - line();
  }

  __device__ void gather_rows(int k) {
    const bool inside = k + unit() * 8 < f_.k;
    const uint4* from = reinterpret_cast<const uint4*>(f_.gathered + (inside ? k : 0));
    const uint32_t to = shared_.a(at_.stage) + static_cast<uint32_t>(line() * 128 + ((unit() ^ (line() % 8)) * 16));
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      if (i * kRowsApart < rows_)
        cp_async_16(to + static_cast<uint32_t>(i * kRowsApart * 128), from + units_[i], inside);
    }
    barrier_arrive_after_copies(shared_.full(at_.stage));
  }

  static constexpr uint16_t kBothBlocks = 3;

  const ProductFactors& f_;
  const SharedMemory& shared_;
  int rank_;
  RingPosition<kStages> at_;
  uint32_t units_[kRowsEach];  // in 16 bytes: offsets of this thread's rows
  int rows_ = 0;               // number of rows from this thread's first line on
};

struct PassTurn {
  const Turns& turns;
  bool gathered, now;

  __device__ void prepare(int, int) const {
    if (gathered) fence_for_async_reads();
  }
  __device__ void last() const {
    if (now) turns.pass();
  }
};

/// What an epilogue multiplies sums with when it reads them: nothing, or the scales of 8-bit floats. Sums are not
/// changed where they are: ptxas serialises wgmma whose accumulators another instruction writes.
struct NoScales {
  __device__ explicit NoScales(const ProductFactors&) {}
  __device__ OneScale of_rows(const PairTile&, int, int) const { return {}; }
};

class Fp8Scales {
 public:
  __device__ explicit Fp8Scales(const ProductFactors& factors) : f_(factors) {}

  /// For a thread's two rows in a block of kBlockM, in the columns of a half of the tile.
  __device__ RowScales of_rows(const PairTile& tile, int block, int half) const {
    RowScales scales;
    const float of_columns = f_.w_scale(tile, half);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = block * kBlockM + sums_row() + 8 * i;
      int64_t from = tile.m_begin + row;
      if (row < tile.m_count && f_.a_rows != nullptr) from = f_.a_rows[from];
      scales.rows[i] = row < tile.m_count ? of_columns * f_.a_scales[from] : 0.0f;
    }
    return scales;
  }

 private:
  const ProductFactors& f_;
};

/// Each consumer calls Epilogue(args, operands).write(accumulators, tile, strip, scales) for its tiles, which have
/// Epilogue::kColumns columns; `strip` is kStripBytes of shared memory per warp.
template <bool kBColumns, class Epilogue, bool kFp8 = false>
__global__ void __launch_bounds__(kThreads, 1) grouped_product(const __grid_constant__ ProductFactors factors,
                                                               const __grid_constant__ typename Epilogue::Args args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  const SharedMemory shared(memory);
  const int rank = static_cast<int>(cluster_rank());
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const bool gathered = factors.a_rows != nullptr;
  // One arrival for TMA, and one for each thread that gathers.
  if (threadIdx.x == 0) shared.init_barriers(gathered ? 1 + 128 : 1);
  RowTiles tiles(shared.tile_list, factors.offsets, factors.groups, factors.n_tiles, rank);
  cluster_sync();
  if (warpgroup == kConsumers) {
    fewer_registers<kProducerRegisters>();
    ProductLoader<kBColumns, Epilogue::kColumns>(factors, shared, rank).run(tiles);
    __syncwarp();
  } else {
    more_registers<kConsumerRegisters>();
    const uint32_t strip = shared.strips + threadIdx.x / 32 * kStripBytes;
    WarpgroupSums<Epilogue::kColumns> sums;
    RingPosition<kStages> at;
    PairTile tile;
    Turns turns(shared, warpgroup);
    for (int index = 0; tiles.next(tile); ++index) {
      if (index % kConsumers != warpgroup) {
        at.skip(factors.k_steps + factors.extra_steps);
        continue;
      }
      const int columns = Epilogue::kNarrowTiles ? factors.n - factors.first_column(tile) : kTileN;
      const bool extra = factors.extra_steps > 0;
      turns.wait();
      multiply_tile<false, kBColumns, kFp8>(sums, shared, at, factors.k_steps, tile.m_count, columns,
                                            PassTurn{turns, gathered, !extra});
      if constexpr (!kFp8) {
        if (extra && tile.m_count == 0) {
          multiply_tile<false, false>(sums, shared, at, factors.extra_steps, 0, columns, PassTurn{turns, false, true});
        } else if (extra) {
          multiply<2, Epilogue::kColumns, false, false>(sums, shared, at, factors.extra_steps, false,
                                                        PassTurn{turns, false, true});
        }
      }
      using Scales = std::conditional_t<kFp8, Fp8Scales, NoScales>;
      if (tile.m_count > 0) Epilogue(args, factors).write(sums, tile, strip, Scales(factors));
    }
  }
  cluster_sync();  // the other CTA may write to this one's shared memory until here
#endif
}

/// With K-major weights a tile has two halves of their rows, `half_distance` apart; if these are gate and up, it has
/// kHalfN columns of each.
inline ProductFactors product_factors(const RowGroups& groups, const Tensor& a, const Tensor& a_rows, const Tensor& w,
                                      bool w_transposed, const Tensor& extra_a, const Tensor& extra_w, bool halves,
                                      int columns_of_tile = kTileN) {
  ProductFactors f;
  f.groups = static_cast<int>(groups.groups());
  f.n = static_cast<int>(w.shape[w_transposed ? 2 : 1]);
  f.k = static_cast<int>(w.shape[w_transposed ? 1 : 2]);
  f.offsets = groups.offsets.as<int64_t>();
  if (a_rows.defined()) {
    f.gathered = elements<__nv_bfloat16>(a);
    f.a_rows = a_rows.as<int32_t>();
  }
  f.a = matrix_map(a, 1, a.shape[0], f.k, kBlockM);
  f.w = matrix_map(w, w.shape[0], w.shape[1], w.shape[2], w_transposed ? kTileK / 2 : kHalfN);
  f.k_steps = (f.k + kTileK - 1) / kTileK;
  if (extra_a.defined()) {
    f.extra_k = static_cast<int>(extra_a.shape[1]);
    f.extra_a = matrix_map(extra_a, 1, extra_a.shape[0], f.extra_k, kBlockM);
    f.extra_w = matrix_map(extra_w, extra_w.shape[0], extra_w.shape[1], f.extra_k, kHalfN);
    f.extra_steps = (f.extra_k + kTileK - 1) / kTileK;
  }
  f.tile_columns = halves ? kHalfN : columns_of_tile;
  f.half_distance = halves ? f.n / 2 : kHalfN;
  const int columns = halves ? f.n / 2 : f.n;
  f.n_tiles = (columns + f.tile_columns - 1) / f.tile_columns;
  return f;
}

/// The factors of a product of 8-bit floats.
inline ProductFactors fp8_product_factors(const RowGroups& groups, const Tensor& a, const Tensor& a_scales,
                                          const Tensor& a_rows, const Fp8Stack& w, bool halves,
                                          int columns_of_tile = kTileN) {
  const auto pairs = [](Tensor codes) {
    codes.dtype = DType::kBF16;
    return codes;
  };
  ProductFactors f;
  f.groups = static_cast<int>(groups.groups());
  f.matrices = static_cast<int>(w.matrices);
  f.n = static_cast<int>(w.rows * w.matrices);
  f.k = static_cast<int>(w.columns / 2);
  f.offsets = groups.offsets.as<int64_t>();
  if (a_rows.defined()) {
    f.gathered = reinterpret_cast<const __nv_bfloat16*>(a.data);
    f.a_rows = a_rows.as<int32_t>();
  }
  f.a_scales = a_scales.as<float>();
  f.w_scales = w.scales;
  f.w_scale_pitch = static_cast<int>(w.scale_pitch);
  f.half_lines = columns_of_tile / 2;
  f.a = matrix_map(pairs(a), 1, a.shape[0], f.k, kBlockM);
  f.w = tensor_map(pairs(w.codes), {f.k, w.rows, groups.groups() * w.matrices}, {f.k, w.matrix_bytes / 2},
                   {f.half_lines, 1});
  f.k_steps = (f.k + kTileK - 1) / kTileK;
  f.tile_columns = halves ? kHalfN : columns_of_tile;
  f.half_distance = halves ? 0 : f.half_lines;
  const int columns = halves ? f.n / 2 : f.n;
  f.n_tiles = (columns + f.tile_columns - 1) / f.tile_columns;
  return f;
}

template <bool kBColumns, class Epilogue, bool kFp8 = false>
void launch_product(const Context& context, const char* doing, const ProductFactors& factors, int64_t rows,
                    const typename Epilogue::Args& args) {
  const int64_t tiles = (rows / kPairM + factors.groups) * (factors.n_tiles + 1);
  launch_pairs(context, doing, grouped_product<kBColumns, Epilogue, kFp8>, RowTiles::shared_size(factors.groups), tiles,
               factors, args);
}

}  // namespace hone::cuda::sm90
