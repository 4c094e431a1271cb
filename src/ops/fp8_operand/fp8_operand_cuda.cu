// Quantises operands to 8-bit floats: bound by memory, 3 bytes an element from bfloat16 where a group fits into what a
// CTA holds (blockwise; rowwise, whose second look at a row comes from a cache), 5 where the magnitudes are known only
// after a pass of their own (tensorwise; a transposed weight, and columns, of rowwise).
#include <cuda_fp8.h>

#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/fp8_operand/fp8_operand.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kVector = 8;
constexpr int kBlock = static_cast<int>(kFp8Block), kLanesOfGroup = kBlock / kVector;

/// Two numbers as codes, the first one in the lower byte.
__device__ uint32_t pair_of_codes(float first, float second, Fp8Code code) {
  const auto kind = code == Fp8Code::kE4m3 ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kind);
}

__device__ uint2 codes_of(const float (&values)[kVector], const float (&inverses)[kVector], Fp8Code code) {
  uint32_t pairs[kVector / 2];
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    pairs[i / 2] = pair_of_codes(__fmul_rn(values[i], inverses[i]), __fmul_rn(values[i + 1], inverses[i + 1]), code);
  }
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

__device__ uint2 codes_of(const float (&values)[kVector], float inverse, Fp8Code code) {
  float inverses[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) inverses[i] = inverse;
  return codes_of(values, inverses, code);
}

__device__ uint32_t magnitude_of(float value) { return __float_as_uint(value) & 0x7fffffffu; }

__device__ uint32_t magnitude_of(const float (&values)[kVector]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = max(largest, magnitude_of(values[i]));
  return largest;
}

template <int kLanes>
__device__ uint32_t lanes_max(uint32_t value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}

/// The largest one of a CTA, in every thread.
__device__ uint32_t block_max(uint32_t value, uint32_t* partial) {
  value = lanes_max<32>(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) value = max(value, partial[warp]);
  return value;
}

/// Elements [at, at + kVector) of a row times their factors.
template <class T>
__device__ void load_values(const T* row, const float* factors, int64_t at, float (&values)[kVector]) {
  load_floats(row + at, values);
  if (factors == nullptr) return;
  float factor[kVector];
  load_floats(factors + at, factor);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = __fmul_rn(values[i], factor[i]);
}

/// What the kernels read of Fp8RowsArgs.
template <class T>
struct Rows {
  const T* x = nullptr;
  const float* factors = nullptr;
  int64_t count = 0, padded = 0, k = 0;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  Fp8Code code = Fp8Code::kE4m3;
  const int64_t* offsets = nullptr;  ///< where groups begin, or null
  int groups = 0, parts = 1;
  const float* group_scales = nullptr;
  int64_t group_pitch = 1;

  /// The group of a row, by bisection; -1: none.
  __device__ int group_of(int64_t row) const {
    if (offsets == nullptr || row >= offsets[groups]) return -1;
    int low = 0, high = groups;  // offsets[low] <= row < offsets[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (offsets[middle] <= row ? low : high) = middle;
    }
    return low;
  }
};

__device__ void store_codes(uint8_t* codes, uint2 values) { *reinterpret_cast<uint2*>(codes) = values; }

/// A CTA for each row.
template <class T>
__global__ void __launch_bounds__(kThreads) rowwise_kernel(Rows<T> rows) {
  __shared__ uint32_t partial[kWarps];
  const int64_t row = blockIdx.x;
  const bool real = row < rows.count;
  const T* x = rows.x + row * rows.k;
  const int group = real ? rows.group_of(row) : -1;
  const int64_t width = rows.k / rows.parts;
  const auto load = [&](int64_t at, float(&values)[kVector]) {
    load_values(x, rows.factors, at, values);
    if (group < 0) return;
    const float factor = rows.group_scales[(group * rows.parts + at / width) * rows.group_pitch];
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = __fmul_rn(values[i], factor);
  };
  float values[kVector];
  uint32_t largest = 0;
  for (int64_t at = threadIdx.x * kVector; real && at < rows.k; at += kThreads * kVector) {
    load(at, values);
    largest = max(largest, magnitude_of(values));
  }
  const Fp8Scale scale = fp8_scale(block_max(largest, partial), rows.code);
  if (threadIdx.x == 0) rows.scales[row] = scale.scale;
  for (int64_t at = threadIdx.x * kVector; at < rows.k; at += kThreads * kVector) {
    uint2 codes = {0, 0};
    if (real) {
      load(at, values);
      codes = codes_of(values, scale.inverse, rows.code);
    }
    store_codes(rows.codes + row * rows.k + at, codes);
  }
}

/// 16 lanes for each 1 x 128.
template <class T>
__global__ void __launch_bounds__(kThreads) groups_kernel(Rows<T> rows) {
  const int64_t groups = (rows.k + kBlock - 1) / kBlock;
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanesOfGroup;
  const int64_t row = index / groups, group = index % groups;
  const int64_t at = group * kBlock + threadIdx.x % kLanesOfGroup * kVector;
  const bool inside = row < rows.padded && at < rows.k;
  float values[kVector] = {};
  if (inside && row < rows.count) load_values(rows.x + row * rows.k, rows.factors, at, values);
  const Fp8Scale scale = fp8_scale(lanes_max<kLanesOfGroup>(magnitude_of(values)), rows.code);
  if (!inside) return;
  if (threadIdx.x % kLanesOfGroup == 0) rows.scales[group * rows.padded + row] = scale.scale;
  store_codes(rows.codes + row * rows.k + at, codes_of(values, scale.inverse, rows.code));
}

/// The largest magnitudes of rows, or of the whole, in cells that begin as zeros. A CTA takes kRowsOfCta rows.
constexpr int kRowsOfCta = 4;

template <class T, bool kOfRows>
__global__ void __launch_bounds__(kThreads) magnitudes_kernel(Rows<T> rows, uint32_t* cells) {
  __shared__ uint32_t partial[kWarps];
  uint32_t largest = 0;
  for (int i = 0; i < kRowsOfCta; ++i) {
    const int64_t row = int64_t{blockIdx.x} * kRowsOfCta + i;
    if (row >= rows.count) break;
    for (int64_t at = threadIdx.x * kVector; at < rows.k; at += kThreads * kVector) {
      float values[kVector];
      load_values(rows.x + row * rows.k, rows.factors, at, values);
      largest = max(largest, magnitude_of(values));
    }
    if constexpr (kOfRows) {
      largest = block_max(largest, partial);
      if (threadIdx.x == 0) cells[row] = largest;
      largest = 0;
      __syncthreads();
    }
  }
  if constexpr (!kOfRows) {
    largest = block_max(largest, partial);
    if (threadIdx.x == 0) atomicMax(cells, largest);
  }
}

/// Codes by the whole's magnitude, which is in the cell of its scale.
template <class T>
__global__ void __launch_bounds__(kThreads) tensorwise_kernel(Rows<T> rows) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  if (at >= rows.padded * rows.k) return;
  uint2 codes = {0, 0};
  if (at < rows.count * rows.k) {
    float values[kVector];
    const int64_t column = rows.factors == nullptr ? 0 : at % rows.k;
    load_values(rows.x + (at - column), rows.factors, column, values);
    const auto magnitude = *reinterpret_cast<const uint32_t*>(rows.scales);
    codes = codes_of(values, fp8_scale(magnitude, rows.code).inverse, rows.code);
  }
  store_codes(rows.codes + at, codes);
}

__global__ void fill_ones_kernel(float* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = 1.0f;
}

/// Magnitudes become scales, in place.
__global__ void finish_scales_kernel(float* scales, int64_t count, Fp8Code code) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) scales[i] = fp8_scale(__float_as_uint(scales[i]), code).scale;
}

void finish_scales(const Context& context, const Tensor& scales, Fp8Code code) {
  const int64_t count = scales.numel();
  finish_scales_kernel<<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(elements<float>(scales), count,
                                                                                         code);
}

/// The magnitude of the whole, in the cell of its scale.
template <class T>
void find_magnitude(const Context& context, const Rows<T>& rows) {
  check(cudaMemsetAsync(rows.scales, 0, sizeof(float), stream_of(context)), "clearing a magnitude");
  if (rows.count == 0) return;
  magnitudes_kernel<T, false><<<blocks_for(rows.count, kRowsOfCta), kThreads, 0, stream_of(context)>>>(
      rows, reinterpret_cast<uint32_t*>(rows.scales));
}

}  // namespace

void fp8_rows(const Context& context, const Fp8RowsArgs& args) {
  if (context.dry() || args.to.codes.numel() == 0) return;
  HONE_ASSERT(allows_vectors(args.x, args.x.shape[1], kVector) && allows_vectors(args.factors, kVector, kVector));
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    const Rows<T> rows{
        .x = elements<T>(args.x),
        .factors = elements<float>(args.factors),
        .count = args.x.shape[0],
        .padded = args.to.codes.shape[0],
        .k = args.x.shape[1],
        .codes = elements<uint8_t>(args.to.codes),
        .scales = elements<float>(args.to.scales),
        .code = args.to.code,
        .offsets = elements<int64_t>(args.group_factors.offsets),
        .groups = args.group_factors.offsets.defined() ? static_cast<int>(args.group_factors.offsets.numel()) - 1 : 0,
        .parts = static_cast<int>(args.group_factors.parts),
        .group_scales = args.group_factors.scales,
        .group_pitch = args.group_factors.pitch};
    const cudaStream_t stream = stream_of(context);
    if (args.recipe == Fp8Recipe::kRowwise) {
      rowwise_kernel<<<blocks_for(rows.padded, 1), kThreads, 0, stream>>>(rows);
    } else if (args.recipe == Fp8Recipe::kBlockwise) {
      const int64_t lanes = rows.padded * ((rows.k + kBlock - 1) / kBlock) * kLanesOfGroup;
      groups_kernel<<<blocks_for(lanes, kThreads), kThreads, 0, stream>>>(rows);
    } else {
      find_magnitude(context, rows);
      tensorwise_kernel<<<blocks_for(rows.padded * rows.k, kThreads * kVector), kThreads, 0, stream>>>(rows);
      finish_scales(context, args.to.scales, args.to.code);
    }
  });
  check_launch("quantising to 8-bit floats");
}

namespace {

/// How the tile of a matrix is scaled.
enum class TileScale {
  kCodes,         ///< not: it is codes
  kTile,          ///< by its own magnitude: a weight of blockwise
  kRow,           ///< by the magnitudes of its rows, which are in the cells of their scales
  kTensor,        ///< by that of the whole
  kColumn,        ///< by those of its columns
  kColumnOfTile,  ///< by those of its columns in this tile: columns of blockwise
};

constexpr bool is_of_columns(TileScale scale) {
  return scale == TileScale::kColumn || scale == TileScale::kColumnOfTile;
}

struct Tiles {
  int64_t rows = 0, columns = 0;  ///< the matrix's
  int64_t padded = 0;             ///< elements of a row of a transposed one: rows, and zeros
  int64_t matrix = 0;             ///< between the matrices of a stack, one for each z of the grid
  int64_t parts = 1;              ///< so many of them lie side by side in a transposed one
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  int64_t scale_down = 0, scale_across = 0;  ///< between the scales of tiles below and beside each other
  Fp8Code code = Fp8Code::kE4m3;
};

/// The largest ones of a thread's columns among its rows become those among all rows of the tile. shared: 8 KiB.
__device__ void columns_max(uint32_t (&largest)[kVector], uint32_t* shared) {
  constexpr int kRowsAtOnce = kThreads / kLanesOfGroup;
  const int row = static_cast<int>(threadIdx.x) / kLanesOfGroup;
  const int column = static_cast<int>(threadIdx.x) % kLanesOfGroup * kVector;
#pragma unroll
  for (int i = 0; i < kVector; ++i) shared[row * kBlock + column + i] = largest[i];
  __syncthreads();
  if (threadIdx.x < kBlock) {
    uint32_t of_column = 0;
    for (int i = 0; i < kRowsAtOnce; ++i) of_column = max(of_column, shared[i * kBlock + threadIdx.x]);
    shared[threadIdx.x] = of_column;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest[i] = shared[column + i];
  __syncthreads();
}

/// A CTA for a tile of 128 x 128, whose codes are in shared memory before they are written in rows of the destination.
template <class T, TileScale kScale, bool kTransposed>
__global__ void __launch_bounds__(kThreads) tile_kernel(const T* w, Tiles tiles) {
  constexpr int kRowsAtOnce = kThreads / kLanesOfGroup, kSteps = kBlock / kRowsAtOnce;
  // A row of the tile begins 4 bytes after the last one ends, so that its columns are in other banks.
  constexpr int kPitch = kBlock + 4;
  __shared__ alignas(16) uint8_t shared[kBlock * kPitch];
  __shared__ uint32_t partial[kWarps];
  const int64_t first_row = int64_t{blockIdx.y} * kBlock, first_column = int64_t{blockIdx.x} * kBlock;
  const int row_of_step = static_cast<int>(threadIdx.x) / kLanesOfGroup;
  const int column = static_cast<int>(threadIdx.x) % kLanesOfGroup * kVector;
  const bool inside = first_column + column < tiles.columns;
  w += blockIdx.z * tiles.matrix;
  uint2 codes[kSteps];
  if constexpr (kScale == TileScale::kCodes) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t row = first_row + step * kRowsAtOnce + row_of_step;
      codes[step] = {0, 0};
      if (inside && row < tiles.rows) {
        codes[step] = *reinterpret_cast<const uint2*>(w + row * tiles.columns + first_column + column);
      }
    }
  } else {
    float values[kSteps][kVector];
    uint32_t largest = 0, of_column[kVector] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t row = first_row + step * kRowsAtOnce + row_of_step;
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[step][i] = 0.0f;
      if (inside && row < tiles.rows) load_floats(w + row * tiles.columns + first_column + column, values[step]);
      if constexpr (kScale == TileScale::kTile) largest = max(largest, magnitude_of(values[step]));
      if constexpr (kScale == TileScale::kColumnOfTile) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) of_column[i] = max(of_column[i], magnitude_of(values[step][i]));
      }
    }
    Fp8Scale scale;
    float inverses[kVector];
    if constexpr (kScale == TileScale::kColumnOfTile) columns_max(of_column, reinterpret_cast<uint32_t*>(shared));
    if constexpr (is_of_columns(kScale)) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int64_t at = first_column + column + i;
        if constexpr (kScale == TileScale::kColumn) {
          of_column[i] = inside ? __float_as_uint(tiles.scales[at]) : 0;
        }
        scale = fp8_scale(of_column[i], tiles.code);
        inverses[i] = scale.inverse;
        if (kScale == TileScale::kColumnOfTile && inside && row_of_step == 0) {
          tiles.scales[blockIdx.y * tiles.scale_down + at] = scale.scale;
        }
      }
    } else if constexpr (kScale == TileScale::kTile) {
      scale = fp8_scale(block_max(largest, partial), tiles.code);
      if (threadIdx.x == 0) tiles.scales[blockIdx.y * tiles.scale_down + blockIdx.x * tiles.scale_across] = scale.scale;
    } else if constexpr (kScale == TileScale::kTensor) {
      scale = fp8_scale(__float_as_uint(tiles.scales[0]), tiles.code);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t row = first_row + step * kRowsAtOnce + row_of_step;
      if constexpr (kScale == TileScale::kRow) {
        if (row < tiles.rows) scale = fp8_scale(__float_as_uint(tiles.scales[row]), tiles.code);
      }
      if constexpr (is_of_columns(kScale)) {
        codes[step] = codes_of(values[step], inverses, tiles.code);
      } else {
        codes[step] = codes_of(values[step], scale.inverse, tiles.code);
      }
    }
  }
  if constexpr (!kTransposed) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int64_t row = first_row + step * kRowsAtOnce + row_of_step;
      if (inside && row < tiles.rows) {
        store_codes(tiles.codes + row * tiles.columns + first_column + column, codes[step]);
      }
    }
  } else {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint8_t* line = shared + column * kPitch + step * kRowsAtOnce + row_of_step;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        line[i * kPitch] = static_cast<uint8_t>((i < 4 ? codes[step].x : codes[step].y) >> 8 * (i % 4));
      }
    }
    __syncthreads();
    const int64_t pitch = tiles.padded * tiles.parts;
    uint8_t* to =
        tiles.codes + blockIdx.z / tiles.parts * tiles.columns * pitch + blockIdx.z % tiles.parts * tiles.padded;
    for (int at = static_cast<int>(threadIdx.x); at < kBlock * kBlock / 16; at += kThreads) {
      const int line = at / (kBlock / 16), offset = at % (kBlock / 16) * 16;
      const int64_t to_row = first_column + line, to_column = first_row + offset;
      if (to_row >= tiles.columns || to_column >= tiles.padded) continue;
      const auto* words = reinterpret_cast<const uint32_t*>(shared + line * kPitch + offset);
      *reinterpret_cast<uint4*>(to + to_row * pitch + to_column) = {words[0], words[1], words[2], words[3]};
    }
  }
}

/// Scales of the blocks of a packed weight.
__global__ void copy_scales_kernel(const float* from, int64_t rows, int64_t columns, float* to, int64_t down,
                                   int64_t across) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < rows * columns) to[i / columns * down + i % columns * across] = from[i];
}

template <class T, TileScale kScale>
void launch_tiles(const Context& context, const T* w, const Tiles& tiles, bool transposed) {
  const dim3 grid(blocks_for(tiles.columns, kBlock), blocks_for(tiles.rows, kBlock));
  constexpr bool kOfColumns = is_of_columns(kScale);
  HONE_ASSERT(transposed || !kOfColumns);
  const auto kernel = transposed ? &tile_kernel<T, kScale, true> : &tile_kernel<T, kScale, kOfColumns>;
  kernel<<<grid, kThreads, 0, stream_of(context)>>>(w, tiles);
}

void take_packed(const Context& context, const Fp8WeightArgs& args, const Tiles& tiles) {
  const PackedWeight& packed = *args.w.packed;
  const auto* codes = elements<uint8_t>(packed.chunks);
  const auto* scales = reinterpret_cast<const float*>(codes + packed.layout.scales);
  launch_tiles<uint8_t, TileScale::kCodes>(context, codes, tiles, args.transposed);
  const bool blocks = args.recipe == Fp8Recipe::kBlockwise;
  const int64_t rows = blocks ? (tiles.rows + kBlock - 1) / kBlock : tiles.rows;
  const int64_t columns = blocks ? packed.layout.scale_columns : 1;
  copy_scales_kernel<<<blocks_for(rows * columns, kThreads), kThreads, 0, stream_of(context)>>>(
      scales, rows, columns, tiles.scales, tiles.scale_down, tiles.scale_across);
}

}  // namespace

void fp8_transposed_stack(const Context& context, const Fp8StackArgs& args) {
  const int64_t matrices = args.w.chunks.shape[0];
  if (context.dry() || args.to.numel() == 0) return;
  const PackedLayout& layout = args.w.layout;
  const Tiles tiles{.rows = layout.rows,
                    .columns = layout.columns,
                    .padded = layout.rows,
                    .matrix = layout.bytes,
                    .parts = args.parts,
                    .codes = elements<uint8_t>(args.to)};
  const dim3 grid(blocks_for(layout.columns, kBlock), blocks_for(layout.rows, kBlock), static_cast<unsigned>(matrices));
  tile_kernel<uint8_t, TileScale::kCodes, true>
      <<<grid, kThreads, 0, stream_of(context)>>>(elements<uint8_t>(args.w.chunks), tiles);
  check_launch("transposing a stack of 8-bit floats");
}

void fp8_weight(const Context& context, const Fp8WeightArgs& args) {
  const Tensor& w = args.w.payload;
  if (context.dry() || args.to.codes.numel() == 0) return;
  const bool blocks = args.recipe == Fp8Recipe::kBlockwise;
  if (!blocks && !args.transposed && !args.w.packed) {
    return cuda::fp8_rows(context, {.recipe = args.recipe, .x = w, .to = args.to});
  }
  const Tensor& scales = args.factors.defined() ? args.factors : args.to.scales;
  if (args.factors.defined()) {
    const int64_t ones = args.to.scales.numel();
    fill_ones_kernel<<<blocks_for(ones, kThreads), kThreads, 0, stream_of(context)>>>(elements<float>(args.to.scales),
                                                                                      ones);
  }
  const int64_t pitch = blocks ? scales.shape[1] : 1;
  const Tiles tiles{.rows = w.shape[0],
                    .columns = w.shape[1],
                    .padded = w.shape[0],
                    .codes = elements<uint8_t>(args.to.codes),
                    .scales = elements<float>(scales),
                    .scale_down = args.transposed ? 1 : pitch,
                    .scale_across = args.transposed ? pitch : 1};
  if (blocks) {  // those that pad a row are read as any number
    check(cudaMemsetAsync(tiles.scales, 0, scales.bytes(), stream_of(context)), "clearing scales");
  }
  if (args.w.packed) {
    take_packed(context, args, tiles);
    return check_launch("taking a weight in 8-bit floats");
  }
  HONE_ASSERT(allows_vectors(w, w.shape[1], kVector));
  cuda::dispatch_float(w.dtype, [&](auto element) {
    using T = decltype(element);
    const T* values = elements<T>(w);
    if (blocks) return launch_tiles<T, TileScale::kTile>(context, values, tiles, args.transposed);
    const Rows<T> rows{
        .x = values, .count = tiles.rows, .padded = tiles.rows, .k = tiles.columns, .scales = tiles.scales};
    if (args.recipe == Fp8Recipe::kTensorwise) {
      find_magnitude(context, rows);
      launch_tiles<T, TileScale::kTensor>(context, values, tiles, args.transposed);
    } else {
      magnitudes_kernel<T, true><<<blocks_for(rows.count, kRowsOfCta), kThreads, 0, stream_of(context)>>>(
          rows, reinterpret_cast<uint32_t*>(rows.scales));
      launch_tiles<T, TileScale::kRow>(context, values, tiles, args.transposed);
    }
    finish_scales(context, scales, Fp8Code::kE4m3);
  });
  check_launch("quantising a weight to 8-bit floats");
}

namespace {

/// The largest magnitudes of columns, in cells that begin as zeros. A CTA takes 128 columns of kRowsOfStrip rows.
constexpr int kRowsOfStrip = 512;

template <class T>
__global__ void __launch_bounds__(kThreads)
    column_magnitudes_kernel(const T* x, int64_t rows, int64_t columns, uint32_t* cells) {
  constexpr int kRowsAtOnce = kThreads / kLanesOfGroup;
  __shared__ uint32_t shared[kRowsAtOnce * kBlock];
  const int64_t column = int64_t{blockIdx.x} * kBlock + threadIdx.x % kLanesOfGroup * kVector;
  const int64_t first = int64_t{blockIdx.y} * kRowsOfStrip, last = min(first + kRowsOfStrip, rows);
  uint32_t largest[kVector] = {};
  for (int64_t row = first + threadIdx.x / kLanesOfGroup; column < columns && row < last; row += kRowsAtOnce) {
    float values[kVector];
    load_floats(x + row * columns + column, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) largest[i] = max(largest[i], magnitude_of(values[i]));
  }
  columns_max(largest, shared);
  if (threadIdx.x >= kLanesOfGroup || column >= columns) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i) atomicMax(cells + column + i, largest[i]);
}

}  // namespace

void fp8_columns(const Context& context, const Fp8ColumnsArgs& args) {
  if (context.dry() || args.to.codes.numel() == 0) return;
  const Tensor& x = args.x;
  HONE_ASSERT(allows_vectors(x, x.shape[1], kVector));
  const cudaStream_t stream = stream_of(context);
  const Tiles tiles{.rows = x.shape[0],
                    .columns = x.shape[1],
                    .padded = args.to.codes.shape[1],
                    .codes = elements<uint8_t>(args.to.codes),
                    .scales = elements<float>(args.to.scales),
                    .scale_down = x.shape[1],
                    .code = args.to.code};
  cuda::dispatch_float(x.dtype, [&](auto element) {
    using T = decltype(element);
    const T* values = elements<T>(x);
    if (args.recipe == Fp8Recipe::kBlockwise) {
      return launch_tiles<T, TileScale::kColumnOfTile>(context, values, tiles, true);
    }
    if (args.recipe == Fp8Recipe::kTensorwise) {
      find_magnitude<T>(context, {.x = values, .count = tiles.rows, .k = tiles.columns, .scales = tiles.scales});
      launch_tiles<T, TileScale::kTensor>(context, values, tiles, true);
    } else {
      check(cudaMemsetAsync(tiles.scales, 0, args.to.scales.bytes(), stream), "clearing magnitudes");
      const dim3 grid(blocks_for(tiles.columns, kBlock), blocks_for(tiles.rows, kRowsOfStrip));
      column_magnitudes_kernel<<<grid, kThreads, 0, stream>>>(values, tiles.rows, tiles.columns,
                                                              reinterpret_cast<uint32_t*>(tiles.scales));
      launch_tiles<T, TileScale::kColumn>(context, values, tiles, true);
    }
    finish_scales(context, args.to.scales, args.to.code);
  });
  check_launch("quantising columns to 8-bit floats");
}

}  // namespace hone::cuda
