// The weight gradients of experts on tier sm80. Both operands are MN-major (a line for each row of the group), so
// ldmatrix transposes them; k runs over the rows of a group, and either operand may be gathered.
//
// Tuned for 128 experts of 2048 x 768 and 16,384 tokens, top-8. One H200 limited to this tier, 2026-11-23: 223 TFLOP/s
// for both projections (sm90: 468 and 447). Registers (ptxas 13.0): 255, no spills. Raw:
// bench/results/sm80-kernels-2026-11-23.txt, sm80-registers-2026-11-23.txt.
#include "kernels/cuda/grouped_gemm/grouped_gemm_sm80.h"
#include "kernels/cuda/grouped_gemm/grouped_tensor_cores_cuda.h"
#include "kernels/cuda/grouped_gemm/sm80_epilogue_cuda.h"
#include "kernels/cuda/grouped_gemm/sm80_product_cuda.h"

namespace hone::cuda {

using namespace sm80;

namespace {

/// An operand of a weight gradient: rows of `width` elements, in order or gathered.
struct WeightOperand {
  const __nv_bfloat16* data = nullptr;  // [·, width]
  const int32_t* rows = nullptr;        // [R] or null
  int width = 0;
};

/// dw(e) [m, n] = Σ over rows r of e: a[a(r), :]ᵀ · b[b(r), :]; both operands are MN-major, a line for each r.
struct WeightFactors {
  WeightOperand a, b;
  const int64_t* offsets = nullptr;
  int groups = 0;
  void* dw = nullptr;  // float32 or bfloat16 [E, m, n]
  bool add = false;
};

/// Row indices of one operand, prefetched one step ahead of their use.
template <int kDepth, int kWidth>
class RowLines {
 public:
  __device__ explicit RowLines(const WeightOperand& operand) : operand_(operand) {}

  /// Requests rows [first, first + count) of all groups for the next step; count <= kDepth.
  __device__ void ask(int first, int count) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int row = line() + p * kLines;
      rows_[p] = -1;
      if (row < count) rows_[p] = operand_.rows != nullptr ? __ldg(operand_.rows + first + row) : first + row;
    }
  }
  /// Copies a part of their elements from `column` on: 16 rows.
  __device__ void load(uint32_t to, int column, int part) const {
    const SharedLines<kDepth, kWidth> lines{to};
    const int at = column + unit() * 8;
    constexpr int kOfPart = 16 / kLines;
#pragma unroll
    for (int i = 0; i < kOfPart; ++i) {
      const int p = part * kOfPart + i;
      const bool exists = rows_[p] >= 0 && at < operand_.width;
      const int64_t from = int64_t{rows_[p]} * operand_.width + at;
      cp_async_16(lines.unit(line() + p * kLines, unit()), exists ? operand_.data + from : operand_.data, exists);
    }
  }

 private:
  static constexpr int kUnits = kWidth / 8, kLines = kProductThreads / kUnits, kPasses = kDepth / kLines;
  static_assert(kPasses * kLines == kDepth);
  __device__ static int line() { return static_cast<int>(threadIdx.x) / kUnits; }
  __device__ static int unit() { return static_cast<int>(threadIdx.x) % kUnits; }

  const WeightOperand& operand_;
  int rows_[kPasses];
};

template <class Shape>
class WeightLoader {
 public:
  __device__ WeightLoader(const WeightFactors& f, const WeightTiles& tiles) : tiles_(tiles), a_(f.a), b_(f.b) {
    begin_tile();
  }

  __device__ void load(uint32_t stage, int part) {
    if (k_ < 0) return;
    a_.load(stage, tile_.m, part);
    b_.load(stage + Shape::kABytes, tile_.n, part);
    if (part + 1 < Shape::kParts) return;
    k_ += Shape::kDepth;
    k_ < tile_.k_count ? ask() : begin_tile();
  }

 private:
  __device__ void begin_tile() {
    do {
      if (!tiles_.next(tile_)) {
        k_ = -1;
        return;
      }
    } while (tile_.k_count == 0);
    k_ = 0;
    ask();
  }
  __device__ void ask() {
    a_.ask(tile_.k_begin + k_, tile_.k_count - k_);
    b_.ask(tile_.k_begin + k_, tile_.k_count - k_);
  }

  WeightTiles tiles_;
  WeightTile tile_;
  RowLines<Shape::kDepth, kTileRows> a_;
  RowLines<Shape::kDepth, kTileColumns> b_;
  int k_ = -1;  // where the tile's next step is; -1: no tiles left
};

/// Each element has one writer and is added to once, so results do not depend on the order of threads.
template <class T>
__device__ void store(const WeightFactors& f, const WarpSums& sums, const WeightTile& tile) {
  const int m = tile.m + warp_row() + accumulator_row(), n = tile.n + warp_across() * kWarpColumns;
  T* dw = static_cast<T*>(f.dw) + int64_t{tile.group} * f.a.width * f.b.width;
#pragma unroll
  for (int i = 0; i < kWarpRows / 16; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m + i * 16 + half * 8;
      const bool row_exists = row < f.a.width;
      T* to = dw + int64_t{row} * f.b.width + n;
      if constexpr (std::is_same_v<T, float>) {
        float2 values[kWarpColumns / 8];
#pragma unroll
        for (int j = 0; j < kWarpColumns / 8; ++j) {
          const bool exists = row_exists && n + j * 8 < f.b.width;
          values[j] = f.add && exists ? *reinterpret_cast<const float2*>(to + j * 8 + accumulator_column()) : float2{};
        }
#pragma unroll
        for (int j = 0; j < kWarpColumns / 8; ++j) {
          if (!row_exists || n + j * 8 >= f.b.width) continue;
          const float(&sum)[4] = sums[i][j];
          __stcs(reinterpret_cast<float2*>(to + j * 8 + accumulator_column()),
                 float2{values[j].x + sum[2 * half], values[j].y + sum[2 * half + 1]});
        }
      } else {
#pragma unroll
        for (int part = 0; part < kWarpColumns / kQuadColumns; ++part) {
          uint32_t packed[4];
          round_row(packed, sums[i], part * 4, half);
          store_quad(to + part * kQuadColumns, packed,
                     row_exists && n + part * kQuadColumns + quad_column() < f.b.width);
        }
      }
    }
  }
}

template <class Shape, class T>
__global__ void __launch_bounds__(kProductThreads, 1) grouped_weight_gradient(const __grid_constant__ WeightFactors f) {
  extern __shared__ __align__(128) char memory[];
  WeightTiles tiles(reinterpret_cast<int32_t*>(memory + Shape::kBytes), f.offsets, f.groups, f.a.width, f.b.width);
  __syncthreads();
  StageRing<Shape> ring(memory);
  WeightLoader<Shape> loader(f, tiles);
  ring.fill(loader);
  WeightTile tile;
  while (tiles.next(tile)) {
    WarpSums sums;
    clear(sums);
    add_product<Shape, true, true>(sums, ring, (tile.k_count + Shape::kDepth - 1) / Shape::kDepth, loader);
    if (tile.k_count > 0 || !f.add) store<T>(f, sums, tile);
  }
  cp_async_wait<0>();
}

WeightOperand weight_operand(const Tensor& data, const Tensor& rows) {
  return {elements<__nv_bfloat16>(data), rows.defined() ? rows.as<int32_t>() : nullptr,
          static_cast<int>(data.shape[1])};
}

/// The sorted list of groups follows the stages in shared memory, which limits their number.
constexpr int kMostGroups = 512;

}  // namespace

bool sm80_can_run(const Context& context, const GroupedWgradArgs& args) {
  return kernel_tiers(context).grouped_gemm == Tier::kSm80 && args.groups.groups() <= kMostGroups &&
         takes_rows(args.a) && takes_rows(args.b) && reinterpret_cast<uintptr_t>(args.dw.dst.data) % 16 == 0;
}

void grouped_wgrad_sm80(const Context& context, const GroupedWgradArgs& args) {
  HONE_ASSERT(sm80_can_run(context, args));
  if (context.dry() || args.groups.groups() == 0) return;
  const WeightFactors f{.a = weight_operand(args.a, args.a_rows),
                        .b = weight_operand(args.b, args.b_rows),
                        .offsets = args.groups.offsets.as<int64_t>(),
                        .groups = static_cast<int>(args.groups.groups()),
                        .dw = args.dw.dst.data,
                        .add = args.dw.beta != 0.0f};
  const int64_t tiles =
      int64_t{f.groups} * ((f.a.width + kTileRows - 1) / kTileRows) * ((f.b.width + kTileColumns - 1) / kTileColumns);
  HONE_ASSERT(tiles <= INT32_MAX / 2);
  const size_t order = WeightTiles::shared_bytes(f.groups);
  cuda::dispatch_float(args.dw.dst.dtype, [&](auto element) {
    with_product_shape(kernel_tiers(context).shared_memory, order, [&](auto shape) {
      using Shape = decltype(shape);
      launch_persistent(context, "multiplying gradients of groups", grouped_weight_gradient<Shape, decltype(element)>,
                        Shape::kBytes + order, tiles, f);
    });
  });
}

}  // namespace hone::cuda
