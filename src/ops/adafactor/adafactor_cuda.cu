// Tiles of kTileRows rows of a matrix, or of a vector divided into rows, each processed by a CTA, in four passes over
// many tensors at once: squares by row and column, columns' sums over tiles, the norm of the update, the update. The
// gradient is read three times, and nothing of its size is written in between.
#include <algorithm>
#include <vector>

#include "kernels/cuda/rows/rounded_vectors_cuda.h"
#include "kernels/cuda/rows/tensor_table_cuda.h"
#include "ops/adafactor/adafactor.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRowsOfWarp = 8, kTileRows = kWarps * kRowsOfWarp;
/// Columns that a warp processes at a time.
constexpr int kStrip = 32 * kPlaceWidth;
/// Maximum floats of column sums of the tensors in one launch, unless a single tensor has more.
constexpr int64_t kMostPartial = int64_t{8} << 20;

struct Entry {
  void* parameter;
  __nv_bfloat16* working_copy;  // or null
  const void* gradient;
  void* m;                  // or null
  float *rows, *columns;    // or null
  float* v;                 // or null
  float* partial;           // [tiles, width] column sums
  double* row_means;        // [matrices]
  double* squares;          // [tiles, 2] sums of squares of the update and the parameter
  int64_t elements, width;  // the sizes of a row
  int64_t matrices, rows_of_matrix;
  float* result;  // [2]: the update's scale, the parameter's decay
  float weight_decay;
  uint32_t stream_id;
  bool narrow_parameter, narrow_gradient, narrow_m;  // bfloat16, else float32
  bool vectors;

  __host__ __device__ int64_t tiles_of_matrix() const { return (rows_of_matrix + kTileRows - 1) / kTileRows; }
  __host__ __device__ int64_t tiles() const { return matrices * tiles_of_matrix(); }
  /// First random number of a row: a multiple of 4 for any width.
  __device__ int64_t random_begin(int64_t row) const { return row * ((width + 3) / 4 * 4); }

  __device__ void load_gradient(Place at, float scale, float (&g)[kPlaceWidth]) const {
    narrow_gradient ? load(static_cast<const __nv_bfloat16*>(gradient), at, g)
                    : load(static_cast<const float*>(gradient), at, g);
#pragma unroll
    for (float& value : g) value *= scale;
  }
};

constexpr int kEntries = 24;
/// A chunk of the tables is a tile, or another unit of work of a pass.
using Table = TensorTable<Entry, kEntries, 1>;
static_assert(sizeof(Table) <= 3900);

struct Constants {
  float eps1, eps2, clip_threshold, beta1, one_minus_beta1;
  double rate_factor;
  bool scale_parameter;
};

/// The rows of a warp in a tile: row i is begin + i · kWarps.
struct WarpRows {
  int64_t tile, matrix, begin, end;  // rows of the matrix

  __device__ WarpRows(const Entry& entry, int64_t index) : tile(index) {
    matrix = tile / entry.tiles_of_matrix();
    const int64_t first = (tile - matrix * entry.tiles_of_matrix()) * kTileRows;
    begin = first + threadIdx.x / 32;
    end = min(entry.rows_of_matrix, first + kTileRows);
  }
  __device__ bool has(int i) const { return begin + i * kWarps < end; }
  /// Row index over all matrices.
  __device__ int64_t row(const Entry& entry, int i) const { return matrix * entry.rows_of_matrix + begin + i * kWarps; }
};

/// The lane's place in a row from `column` on.
__device__ Place place_of(const Entry& entry, int64_t row, int64_t column) {
  const int64_t first = row * entry.width + column, rest = min(entry.width - column, entry.elements - first);
  const int count = rest < 0 ? 0 : rest < kPlaceWidth ? static_cast<int>(rest) : kPlaceWidth;
  return {first, count, entry.vectors && count == kPlaceWidth};
}

__device__ float mixed(float moment, float mean_square, float eps, float one_minus_beta2) {
  return (1.0f - one_minus_beta2) * moment + one_minus_beta2 * (mean_square + eps);
}

/// Updates rows' moments, and computes each tile's sums over its columns.
__global__ void __launch_bounds__(kThreads)
    square_kernel(const __grid_constant__ Table table, const Constants constants, const StepScalars* scalars) {
  if (scalars->nonfinite != 0) return;
  const int index = table.find(blockIdx.x);
  const Entry& entry = table.entries[index];
  __shared__ float column_sums[kWarps][kStrip];
  const WarpRows rows(entry, table.begin(index, blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const float clip = scalars->clip_coefficient;
  double row_sums[kRowsOfWarp] = {};
  for (int64_t strip = 0; strip < entry.width; strip += kStrip) {
    float sums[kPlaceWidth] = {};
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      if (!rows.has(i)) continue;
      float g[kPlaceWidth], of_row = 0.0f;
      entry.load_gradient(place_of(entry, rows.row(entry, i), strip + lane * kPlaceWidth), clip, g);
#pragma unroll
      for (int c = 0; c < kPlaceWidth; ++c) {
        sums[c] += g[c] * g[c];
        of_row += g[c] * g[c];
      }
      row_sums[i] += static_cast<double>(of_row);
    }
#pragma unroll
    for (int c = 0; c < kPlaceWidth; ++c) column_sums[warp][lane * kPlaceWidth + c] = sums[c];
    __syncthreads();
    const int64_t column = strip + threadIdx.x;
    if (threadIdx.x < kStrip && column < entry.width) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += column_sums[w][threadIdx.x];
      entry.partial[rows.tile * entry.width + column] = sum;
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    if (!rows.has(i)) continue;
    const double sum = warp_sum(row_sums[i]);
    if (lane != 0) continue;
    float& moment = entry.rows[rows.row(entry, i)];
    moment = mixed(moment, static_cast<float>(sum / static_cast<double>(entry.width)), constants.eps1,
                   scalars->bias_correction2);
  }
}

/// CTAs per matrix in column_kernel: each processes kThreads columns, and the last one the mean of the rows' moments.
__host__ __device__ int64_t column_blocks(const Entry& entry) { return (entry.width + kThreads - 1) / kThreads + 1; }

__global__ void __launch_bounds__(kThreads)
    column_kernel(const __grid_constant__ Table table, const Constants constants, const StepScalars* scalars) {
  if (scalars->nonfinite != 0) return;
  const int index = table.find(blockIdx.x);
  const Entry& entry = table.entries[index];
  const int64_t block = table.begin(index, blockIdx.x), matrix = block / column_blocks(entry);
  const int64_t part = block - matrix * column_blocks(entry);
  if (part == column_blocks(entry) - 1) {
    __shared__ double partial[kWarps];
    const float* moments = entry.rows + matrix * entry.rows_of_matrix;
    double sum = 0.0;
    for (int64_t r = threadIdx.x; r < entry.rows_of_matrix; r += kThreads) sum += static_cast<double>(moments[r]);
    sum = block_sum<kThreads>(sum, partial);
    if (threadIdx.x == 0) entry.row_means[matrix] = sum / static_cast<double>(entry.rows_of_matrix);
    return;
  }
  const int64_t column = part * kThreads + threadIdx.x;
  if (column >= entry.width) return;
  const float* partial = entry.partial + matrix * entry.tiles_of_matrix() * entry.width + column;
  double sum = 0.0;
#pragma unroll 8
  for (int64_t tile = 0; tile < entry.tiles_of_matrix(); ++tile)
    sum += static_cast<double>(partial[tile * entry.width]);
  float& moment = entry.columns[matrix * entry.width + column];
  moment = mixed(moment, static_cast<float>(sum / static_cast<double>(entry.rows_of_matrix)), constants.eps1,
                 scalars->bias_correction2);
}

/// 1 / sqrt(row / mean of rows), or 1 without factors.
__device__ float row_factor(const Entry& entry, const WarpRows& rows, int64_t row) {
  if (entry.rows == nullptr) return 1.0f;
  return 1.0f / sqrtf(static_cast<float>(static_cast<double>(entry.rows[row]) / entry.row_means[rows.matrix]));
}

/// Computes the update of a place before clipping, in place of its gradient. Reads v if there are no factors.
__device__ void form_update(const Entry& entry, const WarpRows& rows, Place at, int64_t column, float of_row,
                            float (&g)[kPlaceWidth]) {
  float moments[kPlaceWidth];
  if (entry.rows == nullptr) {
    load(entry.v, at, moments);
  } else {
    const int64_t first = rows.matrix * entry.width + column;
    load(entry.columns, {first, at.count, at.vector && first % kPlaceWidth == 0}, moments);
  }
#pragma unroll
  for (int i = 0; i < kPlaceWidth; ++i) g[i] = i < at.count ? g[i] * of_row / sqrtf(moments[i]) : 0.0f;
}

__device__ void load_parameter(const Entry& entry, Place at, float (&p)[kPlaceWidth]) {
  entry.narrow_parameter ? load(static_cast<const __nv_bfloat16*>(entry.parameter), at, p)
                         : load(static_cast<const float*>(entry.parameter), at, p);
}

/// Computes each tile's sums of squares of the update and of the parameter; updates v if there are no factors.
__global__ void __launch_bounds__(kThreads)
    measure_kernel(const __grid_constant__ Table table, const Constants constants, const StepScalars* scalars) {
  if (scalars->nonfinite != 0) return;
  const int index = table.find(blockIdx.x);
  const Entry& entry = table.entries[index];
  __shared__ double partial[kWarps];
  const WarpRows rows(entry, table.begin(index, blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float clip = scalars->clip_coefficient;
  double of_update = 0.0, of_parameter = 0.0;
  for (int i = 0; i < kRowsOfWarp && rows.has(i); ++i) {
    const int64_t row = rows.row(entry, i);
    const float of_row = row_factor(entry, rows, row);
    for (int64_t column = lane * kPlaceWidth; column < entry.width; column += kStrip) {
      const Place at = place_of(entry, row, column);
      float g[kPlaceWidth];
      entry.load_gradient(at, clip, g);
      if (entry.rows == nullptr) {
        float v[kPlaceWidth];
        load(entry.v, at, v);
#pragma unroll
        for (int c = 0; c < kPlaceWidth; ++c) {
          v[c] = mixed(v[c], g[c] * g[c], constants.eps1, scalars->bias_correction2);
        }
        store(entry.v, at, v);
      }
      form_update(entry, rows, at, column, of_row, g);
#pragma unroll
      for (float u : g) of_update += static_cast<double>(u) * static_cast<double>(u);
      if (!constants.scale_parameter) continue;
      float p[kPlaceWidth];
      load_parameter(entry, at, p);
#pragma unroll
      for (float value : p) of_parameter += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  of_update = block_sum<kThreads>(of_update, partial);
  of_parameter = block_sum<kThreads>(of_parameter, partial);
  if (threadIdx.x != 0) return;
  entry.squares[2 * rows.tile] = of_update;
  entry.squares[2 * rows.tile + 1] = of_parameter;
}

/// One CTA per tensor.
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const __grid_constant__ Table table, const Constants constants, const StepScalars* scalars) {
  if (scalars->nonfinite != 0) return;
  const Entry& entry = table.entries[blockIdx.x];
  __shared__ double partial[kWarps];
  double update = 0.0, parameter = 0.0;
  for (int64_t tile = threadIdx.x; tile < entry.tiles(); tile += kThreads) {
    update += entry.squares[2 * tile];
    parameter += entry.squares[2 * tile + 1];
  }
  update = block_sum<kThreads>(update, partial);
  parameter = block_sum<kThreads>(parameter, partial);
  if (threadIdx.x != 0) return;
  const auto n = static_cast<double>(entry.elements);
  double lr = static_cast<double>(scalars->learning_rate) * constants.rate_factor;
  if (constants.scale_parameter) lr *= max(static_cast<double>(constants.eps2), sqrt(parameter / n));
  entry.result[0] = static_cast<float>(lr / max(1.0, sqrt(update / n) / static_cast<double>(constants.clip_threshold)));
  entry.result[1] = static_cast<float>(1.0 - lr * static_cast<double>(entry.weight_decay));
}

/// Stores to a tensor of either format; random numbers are only used for bfloat16.
__device__ void store_either(void* to, bool narrow, Place at, const float (&values)[kPlaceWidth], uint64_t key,
                             int64_t random, RoundingUse use) {
  if (!narrow) return store(static_cast<float*>(to), at, values);
  store_rounded(static_cast<__nv_bfloat16*>(to), at, values, rounding_words(key, random, use), 0);
}

__global__ void __launch_bounds__(kThreads)
    apply_kernel(const __grid_constant__ Table table, const Constants constants, const StepScalars* scalars) {
  if (scalars->nonfinite != 0) return;
  const int index = table.find(blockIdx.x);
  const Entry& entry = table.entries[index];
  const WarpRows rows(entry, table.begin(index, blockIdx.x));
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t key = mix_key(scalars->seed, entry.stream_id);
  const float clip = scalars->clip_coefficient, scale = entry.result[0], decay = entry.result[1];
  for (int i = 0; i < kRowsOfWarp && rows.has(i); ++i) {
    const int64_t row = rows.row(entry, i);
    const float of_row = row_factor(entry, rows, row);
    for (int64_t column = lane * kPlaceWidth; column < entry.width; column += kStrip) {
      const Place at = place_of(entry, row, column);
      const int64_t random = entry.random_begin(row) + column;
      float u[kPlaceWidth], p[kPlaceWidth];
      entry.load_gradient(at, clip, u);
      load_parameter(entry, at, p);
      form_update(entry, rows, at, column, of_row, u);
#pragma unroll
      for (float& value : u) value *= scale;
      if (entry.m != nullptr) {
        float m[kPlaceWidth];
        entry.narrow_m ? load(static_cast<const __nv_bfloat16*>(entry.m), at, m)
                       : load(static_cast<const float*>(entry.m), at, m);
#pragma unroll
        for (int c = 0; c < kPlaceWidth; ++c) {
          u[c] = m[c] = constants.beta1 * m[c] + constants.one_minus_beta1 * u[c];
        }
        store_either(entry.m, entry.narrow_m, at, m, key, random, RoundingUse::kMoments);
      }
#pragma unroll
      for (int c = 0; c < kPlaceWidth; ++c) p[c] = p[c] * decay - u[c];
      store_either(entry.parameter, entry.narrow_parameter, at, p, key, random, RoundingUse::kParameter);
      if (entry.working_copy != nullptr) store(entry.working_copy, at, p);
    }
  }
}

/// Scratch of a tensor in addition to its entry.
struct Needs {
  int64_t partial = 0, tiles = 0, matrices = 0;

  Needs() = default;
  explicit Needs(const AdafactorTensor& tensor) {
    const AdafactorRows rows = AdafactorRows::of(tensor);
    tiles = rows.matrices * ((rows.rows_of_matrix + kTileRows - 1) / kTileRows);
    if (!tensor.rows.defined()) return;
    partial = tiles * rows.width;
    matrices = rows.matrices;
  }
  Needs& operator+=(const Needs& other) {
    partial += other.partial;
    tiles += other.tiles;
    matrices += other.matrices;
    return *this;
  }
};

/// Tensors that are updated together: a range of the list.
struct Group {
  size_t begin = 0, end = 0;
  Needs needs;
};

std::vector<Group> groups_of(const std::vector<AdafactorTensor>& tensors) {
  std::vector<Group> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Needs needs(tensors[i]);
    if (needs.tiles == 0) continue;  // no elements
    const bool joins = !groups.empty() && groups.back().end == i && i - groups.back().begin < kEntries &&
                       groups.back().needs.partial + needs.partial <= kMostPartial;
    if (joins) {
      groups.back().end = i + 1;
      groups.back().needs += needs;
    } else {
      groups.push_back({i, i + 1, needs});
    }
  }
  return groups;
}

/// Scratch of the largest group.
struct Scratch {
  Tensor partial, squares, row_means, results;

  Scratch(ArenaScope& arena, const std::vector<Group>& groups) {
    int64_t floats = 0, tiles = 0, matrices = 0;
    for (const Group& group : groups) {
      floats = std::max(floats, group.needs.partial);
      tiles = std::max(tiles, group.needs.tiles);
      matrices = std::max(matrices, group.needs.matrices);
    }
    partial = arena.take({floats}, DType::kF32);
    squares = arena.take({tiles, 2}, DType::kF64);
    row_means = arena.take({matrices}, DType::kF64);
    results = arena.take({kEntries, 2}, DType::kF32);
  }
};

Entry entry_of(const AdafactorTensor& tensor, bool vectors) {
  const AdafactorRows rows = AdafactorRows::of(tensor);
  const auto aligned = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % (kPlaceWidth * std::max<size_t>(1, size_of(t.dtype))) == 0;
  };
  vectors = vectors && rows.width % kPlaceWidth == 0;
  for (const Tensor& t : {tensor.parameter, tensor.working_copy, tensor.gradient, tensor.m, tensor.columns, tensor.v}) {
    if (t.defined()) vectors = vectors && aligned(t);
  }
  return {.parameter = tensor.parameter.data,
          .working_copy = elements<__nv_bfloat16>(tensor.working_copy),
          .gradient = tensor.gradient.data,
          .m = tensor.m.data,
          .rows = elements<float>(tensor.rows),
          .columns = elements<float>(tensor.columns),
          .v = elements<float>(tensor.v),
          .partial = nullptr,
          .row_means = nullptr,
          .squares = nullptr,
          .elements = rows.elements,
          .width = rows.width,
          .matrices = rows.matrices,
          .rows_of_matrix = rows.rows_of_matrix,
          .result = nullptr,
          .weight_decay = static_cast<float>(tensor.weight_decay),
          .stream_id = tensor.stream_id,
          .narrow_parameter = tensor.parameter.dtype == DType::kBF16,
          .narrow_gradient = tensor.gradient.dtype == DType::kBF16,
          .narrow_m = tensor.m.defined() && tensor.m.dtype == DType::kBF16,
          .vectors = vectors};
}

/// The tables of a group's passes: by tiles, for all tensors and for those with factors, and by blocks of columns.
struct Tables {
  Table tiles, factored_tiles, columns;

  Tables(const AdafactorArgs& args, const Group& group, const Scratch& scratch, bool vectors) {
    Needs before;
    for (size_t i = group.begin; i < group.end; ++i) {
      const AdafactorTensor& tensor = args.tensors[i];
      Entry entry = entry_of(tensor, vectors);
      entry.partial = elements<float>(scratch.partial) + before.partial;
      entry.squares = elements<double>(scratch.squares) + 2 * before.tiles;
      entry.row_means = elements<double>(scratch.row_means) + before.matrices;
      entry.result = elements<float>(scratch.results) + 2 * tiles.count;
      before += Needs(tensor);
      tiles.add(entry, entry.tiles());
      if (entry.rows == nullptr) continue;
      factored_tiles.add(entry, entry.tiles());
      columns.add(entry, entry.matrices * column_blocks(entry));
    }
  }
};

}  // namespace

void adafactor(const Context& context, const AdafactorArgs& args) {
  const std::vector<Group> groups = groups_of(args.tensors);
  ArenaScope arena(context.scratch());
  const Scratch scratch(arena, groups);
  if (context.dry()) return;
  const Constants constants{.eps1 = static_cast<float>(args.eps1),
                            .eps2 = static_cast<float>(args.eps2),
                            .clip_threshold = static_cast<float>(args.clip_threshold),
                            .beta1 = static_cast<float>(args.beta1),
                            .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
                            .rate_factor = args.rate_factor,
                            .scale_parameter = args.scale_parameter};
  for (const Group& group : groups) {
    const Tables tables(args, group, scratch, !context.stream().general_kernels());
    const auto launch = [&](auto kernel, const Table& table, unsigned blocks) {
      if (blocks == 0) return;
      kernel<<<blocks, kThreads, 0, stream_of(context)>>>(table, constants, args.scalars);
      check_launch("updating parameters by Adafactor");
    };
    launch(square_kernel, tables.factored_tiles, tables.factored_tiles.chunks);
    launch(column_kernel, tables.columns, tables.columns.chunks);
    launch(measure_kernel, tables.tiles, tables.tiles.chunks);
    launch(scale_kernel, tables.tiles, static_cast<unsigned>(tables.tiles.count));
    launch(apply_kernel, tables.tiles, tables.tiles.chunks);
  }
}

}  // namespace hone::cuda
