// Generates dropout masks of expert adapters: as bits for the tensor-core kernels, or applied to rows. Backward
// generates them again instead of storing them.
#include "ops/moe_experts/cuda/expert_masks_cuda.h"

#include "core/stream/cuda_launch.h"
#include "kernels/cuda/grouped_gemm/grouped_tiles_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 4;  // features per draw of random numbers

/// The parameters of one adapter's mask, except the expert and the row.
struct Mask {
  int first_expert;  // this rank's block begins here: masks are of the model's experts
  const StepScalars* scalars;
  const int64_t* sample_ids;
  const int32_t* positions;
  float dropout;
  uint32_t stream_id;

  __device__ uint64_t key(int expert) const {
    return lora_dropout_key(scalars->seed, stream_id, static_cast<uint32_t>(first_expert + expert));
  }
  /// The four factors, 0 or 1, of a group of features of a token.
  __device__ void keep(uint64_t expert_key, int32_t token, int64_t group, float (&factors)[kGroup]) const {
    const auto kept = lora_keep(expert_key, dropout, sample_ids[token], positions[token], static_cast<uint32_t>(group));
#pragma unroll
    for (int i = 0; i < kGroup; ++i) factors[i] = kept[static_cast<size_t>(i)];
  }
};

Mask mask_of(const ExpertRows& rows, const LoraDropoutContext& dropout, const ExpertAdapterView& adapter) {
  return {static_cast<int>(rows.first_expert), dropout.scalars, dropout.sample_ids.as<int64_t>(),
          dropout.positions.as<int32_t>(),     adapter.dropout, adapter.stream_id};
}

/// The expert of a row: the last with rows whose offset is at most the row.
__device__ inline int expert_of(const int64_t* offsets, int experts, int64_t row) {
  int low = 0, high = experts;  // offsets[low] <= row < offsets[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class T>
struct alignas(sizeof(T) * kGroup) Features {
  T values[kGroup];
};

/// One warp per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    mask_rows_kernel(Mask mask, const int64_t* offsets, int experts, const int32_t* token, const T* src,
                     const int32_t* index, T* dst, int64_t n) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= offsets[experts]) return;
  const uint64_t key = mask.key(expert_of(offsets, experts, row));
  const T* from = src + (index != nullptr ? index[row] : row) * n;
  T* to = dst + row * n;
  const bool whole = n % kGroup == 0;  // groups are aligned
  for (int64_t group = threadIdx.x % 32; group * kGroup < n; group += 32) {
    float factors[kGroup];
    mask.keep(key, token[row], group, factors);
    if (whole) {
      Features<T> features = reinterpret_cast<const Features<T>*>(from)[group];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (factors[i] == 0.0f) features.values[i] = from_float<T>(0.0f);
      }
      reinterpret_cast<Features<T>*>(to)[group] = features;
    } else {
      for (int i = 0; i < kGroup && group * kGroup + i < n; ++i) {
        const int64_t at = group * kGroup + i;
        to[at] = factors[i] == 0.0f ? from_float<T>(0.0f) : from[at];
      }
    }
  }
}

/// One warp per row, 8 features per thread at a time.
__global__ void __launch_bounds__(kThreads)
    draw_masks_kernel(Mask mask, const int64_t* offsets, int experts, const int32_t* token, uint8_t* dst, int bytes,
                      int64_t stride) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= offsets[experts]) return;
  const uint64_t key = mask.key(expert_of(offsets, experts, row));
  const int32_t from = token[row];
  const int64_t sample = mask.sample_ids[from];
  const int32_t position = mask.positions[from];
  const uint32_t kept_from = lora_kept_from(mask.dropout);
  for (int byte = static_cast<int>(threadIdx.x) % 32; byte < bytes; byte += 32) {
    uint32_t bits = 0;
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const auto words = lora_words(key, sample, position, static_cast<uint32_t>(2 * byte + group));
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        bits |= words[static_cast<size_t>(i)] >= kept_from ? 1u << (kGroup * group + i) : 0u;
    }
    dst[row * stride + byte] = static_cast<uint8_t>(bits);
  }
}

constexpr int kMaxAdapters = 4;
constexpr int kMaskedRows = 32, kMaskedColumns = 256, kMaskedRanks = 16;
constexpr int kRowLanes = kThreads / (kMaskedColumns / kGroup);
constexpr int kRowsOfThread = kMaskedRows / kRowLanes;

template <class T>
struct MaskedSum {
  Mask masks[kMaxAdapters];
  int begins[kMaxAdapters], ranks[kMaxAdapters], adapters;
  const int64_t* offsets;
  int experts;
  const int32_t* token;
  const T* v;
  const T* a;
  T* dst;
  int64_t columns, n;  // J, features
};

/// A CTA adds to 32 rows of one expert × 256 features; a thread to 8 rows × 4 features.
template <class T>
__global__ void __launch_bounds__(kThreads) add_masked_kernel(MaskedSum<T> s) {
  __shared__ alignas(16) float a[kMaskedRanks][kMaskedColumns];
  __shared__ float v[kMaskedRows][kMaskedRanks];
  const GroupTile tile = find_group_tile<kMaskedRows>(s.offsets, s.experts, blockIdx.x);
  if (tile.group < 0) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % (kMaskedColumns / kGroup);
  const int first_row = thread / (kMaskedColumns / kGroup);
  const int64_t first_column = int64_t{blockIdx.y} * kMaskedColumns, column = first_column + lane * kGroup;
  float total[kRowsOfThread][kGroup] = {};
  for (int adapter = 0; adapter < s.adapters; ++adapter) {
    float sums[kRowsOfThread][kGroup] = {};
    for (int first = 0; first < s.ranks[adapter]; first += kMaskedRanks) {
      const int ranks = s.ranks[adapter] - first < kMaskedRanks ? s.ranks[adapter] - first : kMaskedRanks;
      __syncthreads();
      for (int at = thread; at < kMaskedRanks * kMaskedColumns; at += kThreads) {
        const int j = at / kMaskedColumns, c = at % kMaskedColumns;
        const int64_t from = (tile.group * s.columns + s.begins[adapter] + first + j) * s.n + first_column + c;
        a[j][c] = j < ranks && first_column + c < s.n ? to_float(s.a[from]) : 0.0f;
      }
      for (int at = thread; at < kMaskedRows * kMaskedRanks; at += kThreads) {
        const int i = at / kMaskedRanks, j = at % kMaskedRanks;
        const int64_t from = (tile.begin + i) * s.columns + s.begins[adapter] + first + j;
        v[i][j] = j < ranks && tile.begin + i < tile.end ? to_float(s.v[from]) : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kMaskedRanks; ++j) {
        const float4 right = *reinterpret_cast<const float4*>(&a[j][lane * kGroup]);
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) {
          const float left = v[first_row + i * kRowLanes][j];
          sums[i][0] += left * right.x;
          sums[i][1] += left * right.y;
          sums[i][2] += left * right.z;
          sums[i][3] += left * right.w;
        }
      }
    }
    const Mask& mask = s.masks[adapter];
    const uint64_t key = mask.key(tile.group);
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int64_t row = tile.begin + first_row + i * kRowLanes;
      if (row >= tile.end) break;
      float factors[kGroup];
      mask.keep(key, s.token[row], column / kGroup, factors);
#pragma unroll
      for (int c = 0; c < kGroup; ++c) total[i][c] += factors[c] != 0.0f ? sums[i][c] : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    const int64_t row = tile.begin + first_row + i * kRowLanes;
    if (row >= tile.end) break;
    T* to = s.dst + row * s.n + column;
    if (s.n % kGroup == 0 && column < s.n) {
      Features<T> features = *reinterpret_cast<const Features<T>*>(to);
#pragma unroll
      for (int c = 0; c < kGroup; ++c) features.values[c] = from_float<T>(to_float(features.values[c]) + total[i][c]);
      *reinterpret_cast<Features<T>*>(to) = features;
    } else {
#pragma unroll
      for (int c = 0; c < kGroup; ++c) {
        if (column + c < s.n) to[c] = from_float<T>(to_float(to[c]) + total[i][c]);
      }
    }
  }
}

}  // namespace

void mask_rows(const Context& context, const MaskRowsArgs& args) {
  const int64_t rows = args.dst.shape[0], n = args.dst.shape[1];
  if (context.dry() || args.dst.numel() == 0) return;
  cuda::dispatch_float(args.dst.dtype, [&](auto element) {
    using T = decltype(element);
    mask_rows_kernel<T><<<blocks_for(rows, kThreads / 32), kThreads, 0, stream_of(context)>>>(
        mask_of(args.rows, args.dropout, args.adapter), args.rows.offsets.as<int64_t>(),
        static_cast<int>(args.rows.offsets.numel() - 1), args.rows.token.as<int32_t>(), elements<T>(args.src),
        elements<int32_t>(args.index), elements<T>(args.dst), n);
  });
  check_launch("masking the input of expert adapters");
}

void draw_masks(const Context& context, const DrawMasksArgs& args) {
  const int64_t rows = args.dst.shape[0];
  if (context.dry() || rows == 0) return;
  draw_masks_kernel<<<blocks_for(rows, kThreads / 32), kThreads, 0, stream_of(context)>>>(
      mask_of(args.rows, args.dropout, args.adapter), args.rows.offsets.as<int64_t>(),
      static_cast<int>(args.rows.offsets.numel() - 1), args.rows.token.as<int32_t>(), args.dst.as<uint8_t>(),
      static_cast<int>((args.n + 7) / 8), args.dst.shape[1]);
  check_launch("drawing the masks of expert adapters");
}

void add_masked(const Context& context, const AddMaskedArgs& args) {
  const int64_t rows = args.dst.shape[0], n = args.dst.shape[1], experts = args.a.shape[0];
  if (context.dry() || args.dst.numel() == 0) return;
  HONE_ASSERT(args.adapters.size() <= kMaxAdapters);
  cuda::dispatch_float(args.dst.dtype, [&](auto element) {
    using T = decltype(element);
    MaskedSum<T> sum{};
    for (const ExpertAdapterView& adapter : args.adapters) {
      sum.masks[sum.adapters] = mask_of(args.rows, args.dropout, adapter);
      sum.begins[sum.adapters] = static_cast<int>(args.slices[static_cast<size_t>(sum.adapters)].begin);
      sum.ranks[sum.adapters++] = static_cast<int>(adapter.rank());
    }
    sum.offsets = args.rows.offsets.as<int64_t>();
    sum.experts = static_cast<int>(experts);
    sum.token = args.rows.token.as<int32_t>();
    sum.v = elements<T>(args.v);
    sum.a = elements<T>(args.a);
    sum.dst = elements<T>(args.dst);
    sum.columns = args.v.shape[1];
    sum.n = n;
    const dim3 grid(static_cast<unsigned>(max_group_tiles(rows, experts, kMaskedRows)), blocks_for(n, kMaskedColumns));
    add_masked_kernel<T><<<grid, kThreads, 0, stream_of(context)>>>(sum);
  });
  check_launch("adding the input gradient of expert adapters");
}

}  // namespace hone::cuda
