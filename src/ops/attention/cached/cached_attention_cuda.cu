// Sequences that add several tokens use attention's kernel for Hopper or the general one. A sequence that adds a single
// token would leave most of their tile empty and most of the GPU idle: its cached positions are divided into parts of
// kPartKeys, one per CTA, and the CTA that ends last combines them in order. The choice for a sequence depends only on
// that sequence.
#include <optional>
#include <type_traits>

#include "ops/attention/attention_sinks.h"
#include "ops/attention/cached/cached_attention.h"
#include "ops/attention/cached/decode_part_cuda.h"
#include "ops/attention/sm90/attention_cuda.h"

namespace hone::cuda {

namespace {

/// Heads that a CTA computes at a time, as many as fit in its static shared memory; a larger group takes several
/// passes.
template <int kDim>
constexpr int kHeadsAtOnce = kDim > 256 ? 8 : 16;

/// Scores of the block's keys for `heads` heads: scores[h, key] = scale · q_h·k; a warp processes kAtOnce keys at a
/// time.
template <class T, int kDim>
__device__ void score_keys(const DecodingArgs<T>& args, const float (*q)[kDim], int heads, const T* k,
                           const typename DecodingArgs<T>::Keys& keys, float (*scores)[kPartKeys]) {
  constexpr int kAtOnce = 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t stride = int64_t{args.num_kv_heads} * args.head_dim;
  for (int first = warp * kAtOnce; first < keys.count; first += kDecodeWarps * kAtOnce) {
    float rows[kAtOnce][kDim / 32];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const T* row = k + keys.row(first + j) * stride;
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        const bool inside = first + j < keys.count && lane + 32 * i < args.head_dim;
        rows[j][i] = inside ? to_float(row[lane + 32 * i]) : 0.0f;
      }
    }
    for (int head = 0; head < heads; ++head) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kDim / 32; ++i) sum = fmaf(q[head][lane + 32 * i], rows[j][i], sum);
        sum = warp_sum(sum);
        if (lane == 0 && first + j < keys.count) scores[head][first + j] = args.scale * sum;
      }
    }
  }
}

/// One part of the keys of one sequence, for the heads of one key-value head.
template <class T, int kDim>
__global__ void __launch_bounds__(kDecodeThreads) decode_part_kernel(DecodingArgs<T> args) {
  constexpr int kHeads = kHeadsAtOnce<kDim>;
  // A thread's dimensions, kDecodeThreads apart, and the threads that share them and sum over different keys.
  constexpr int kColumns = kDim > kDecodeThreads ? kDim / kDecodeThreads : 1;
  constexpr int kSplits = kColumns * kDecodeThreads / kDim;
  __shared__ float q[kHeads][kDim];
  __shared__ __align__(8) float scores[kHeads][kPartKeys];
  __shared__ float partial[kSplits][kDim];
  const int part = blockIdx.x, kv_head = blockIdx.y, n = blockIdx.z, dim = args.head_dim, v_dim = args.v_head_dim;
  const auto part_keys = args.keys_of(n, part);
  const int keys = part_keys.count;
  if (keys <= 0) return;

  const int64_t v_stride = int64_t{args.num_kv_heads} * v_dim;
  const T* k = args.k + kv_head * dim;
  const T* v = args.v + kv_head * v_dim;
  const int group = args.num_heads / args.num_kv_heads, column = threadIdx.x % kDim, split = threadIdx.x / kDim;
  for (int done = 0; done < group; done += kHeads) {
    const int heads = min(group - done, kHeads), head = kv_head * group + done;
    const int64_t at = (int64_t{n} * args.num_heads + head) * args.parts + part;  // index of the first head's part
    __syncthreads();
    for (int i = threadIdx.x; i < heads * kDim; i += kDecodeThreads) {
      const T* row = args.q + (int64_t{args.cu_seqlens[n]} * args.num_heads + head + i / kDim) * dim;
      q[i / kDim][i % kDim] = i % kDim < dim ? to_float(row[i % kDim]) : 0.0f;
    }
    __syncthreads();
    score_keys<T, kDim>(args, q, heads, k, part_keys, scores);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x) / 32; i < heads; i += kDecodeWarps) {
      const PartSoftmax softmax = softmax_of(scores[i], keys);
      softmax.write(args.stats + 2 * (at + int64_t{i} * args.parts));
      __syncwarp();
#pragma unroll
      for (int x = 0; x < kPartKeys / 64; ++x) {
        reinterpret_cast<float2*>(scores[i])[threadIdx.x % 32 + 32 * x] = softmax.p[x];
      }
    }
    __syncthreads();
    float sums[kHeads][kColumns] = {};
#pragma unroll 4
    for (int key = split; key < keys; key += kSplits) {
      const T* row = v + part_keys.row(key) * v_stride;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int at = column + c * kDecodeThreads;
        const float value = at < v_dim ? to_float(row[at]) : 0.0f;
#pragma unroll
        for (int i = 0; i < kHeads; ++i) {
          if (i < heads) sums[i][c] = fmaf(scores[i][key], value, sums[i][c]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (i >= heads) continue;
      __syncthreads();
#pragma unroll
      for (int c = 0; c < kColumns; ++c) partial[split][column + c * kDecodeThreads] = sums[i][c];
      __syncthreads();
      if (split != 0) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int of_sum = column + c * kDecodeThreads;
        if (of_sum >= v_dim) continue;
        float sum = 0.0f;
#pragma unroll
        for (int s = 0; s < kSplits; ++s) sum += partial[s][of_sum];
        args.sums[(at + int64_t{i} * args.parts) * v_dim + of_sum] = sum;
      }
    }
  }
  join_parts<kDim>(args, n, kv_head);
}

/// Rows of a pass, and the pages that they are written to.
struct AppendedRows {
  const std::byte* rows;
  std::byte* pages;
  int64_t row_bytes;
};

struct AppendArgs {
  const int32_t* cu_seqlens;
  CachedKeys cached;
  int num_documents, tokens, num_kv_heads;
  AppendedRows k, v;
  int* finished;  ///< DecodingArgs'
};

constexpr int kAppendThreads = 128;

/// Zeroes the rows of v that follow the last one of document n in its page, if it adds several: the kernel for Hopper
/// multiplies them by probabilities of 0.
template <class Unit>
__device__ void clear_next(const AppendArgs& args, int n) {
  const int64_t added = args.cu_seqlens[n + 1] - args.cu_seqlens[n], end = args.cached.lengths[n] + added;
  if (added < 2 || end % kCachePage == 0 || end > args.cached.capacity()) return;
  auto* const units = reinterpret_cast<Unit*>(args.v.pages + args.cached.row(n, end) * args.v.row_bytes);
  const int64_t count = (kCachePage - end % kCachePage) * args.v.row_bytes / static_cast<int64_t>(sizeof(Unit));
  for (int64_t i = threadIdx.x; i < count; i += kAppendThreads) units[i] = Unit{};
}

/// Copies a row of k and one of v into the cache, in units of Unit, and zeroes the counters of its document; CTAs
/// beyond the tokens clear rows of a document.
template <class Unit>
__global__ void __launch_bounds__(kAppendThreads) append_kernel(AppendArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  if (row >= args.tokens) return clear_next<Unit>(args, row - args.tokens);
  int low = 0, high = args.num_documents;  // the sequence is the last one that starts at or before the row
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (args.cu_seqlens[middle] <= row ? low : high) = middle;
  }
  const int64_t position = int64_t{args.cached.lengths[low]} + row - args.cu_seqlens[low];
  if (position >= args.cached.capacity()) return;
  const int64_t to = args.cached.row(low, position);
  const auto copy = [&](const AppendedRows& side) {
    const auto* from = reinterpret_cast<const Unit*>(side.rows + row * side.row_bytes);
    auto* units = reinterpret_cast<Unit*>(side.pages + to * side.row_bytes);
    const auto count = static_cast<int>(side.row_bytes / static_cast<int64_t>(sizeof(Unit)));
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kAppendThreads) units[i] = from[i];
  };
  copy(args.k);
  copy(args.v);
  for (int i = static_cast<int>(threadIdx.x); i < args.num_kv_heads; i += kAppendThreads) {
    args.finished[low * args.num_kv_heads + i] = 0;
  }
}

/// Writes the pass's rows of k and v into the cache and zeroes `finished`; with `clears`, zeroes the rows of v that
/// follow them.
void append(const Context& context, const CachedAttentionArgs& args, const CachedKeys& cached, const Tensor& finished,
            bool clears) {
  const auto rows = [](const Tensor& from, const Tensor& pages) {
    return AppendedRows{from.data, pages.data, from.shape[1] * static_cast<int64_t>(size_of(from.dtype))};
  };
  const AppendArgs kernel_args{.cu_seqlens = elements<int32_t>(args.cache.added.cu_seqlens),
                               .cached = cached,
                               .num_documents = static_cast<int>(args.cache.added.num_documents),
                               .tokens = static_cast<int>(args.q.shape[0]),
                               .num_kv_heads = static_cast<int>(args.options.num_kv_heads),
                               .k = rows(args.k, args.cache.k),
                               .v = rows(args.v, args.cache.v),
                               .finished = elements<int>(finished)};
  constexpr int64_t kWide = sizeof(uint4);
  const bool wide = kernel_args.k.row_bytes % kWide == 0 && kernel_args.v.row_bytes % kWide == 0;
  auto* kernel = wide ? append_kernel<uint4> : append_kernel<uint16_t>;
  const int64_t blocks = kernel_args.tokens + (clears ? kernel_args.num_documents : 0);
  kernel<<<blocks_for(blocks, 1), kAppendThreads, 0, stream_of(context)>>>(kernel_args);
  check_launch("appending to the key-value cache");
}

template <class T>
void decode(const Context& context, const DecodingArgs<T>& args, int64_t num_sequences) {
  const auto sequences = static_cast<unsigned>(num_sequences);
  dispatch_padded_dim(std::max(args.head_dim, args.v_head_dim), [&](auto padded) {
    const dim3 grid(static_cast<unsigned>(args.parts), static_cast<unsigned>(args.num_kv_heads), sequences);
    if constexpr (std::is_same_v<T, __nv_bfloat16> && padded.value >= 64 && padded.value <= kMostTensorDim) {
      if (tensor_cores_serve(args.head_dim, args.v_head_dim)) {
        constexpr int kShared = DecodeMemory<padded.value>::kBytes;
        auto* kernel = decode_part_tensor_kernel<padded.value>;
        allow_shared_memory(kernel, kShared);
        kernel<<<grid, kDecodeThreads, kShared, stream_of(context)>>>(args);
        return check_launch("attending to cached keys");
      }
    }
    decode_part_kernel<T, padded.value><<<grid, kDecodeThreads, 0, stream_of(context)>>>(args);
    check_launch("attending to cached keys");
  });
}

__global__ void advance_kernel(int32_t* lengths, const int32_t* cu_seqlens, int num_sequences) {
  const int n = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (n < num_sequences) lengths[n] += cu_seqlens[n + 1] - cu_seqlens[n];
}

}  // namespace

void cached_attention(const Context& context, const CachedAttentionArgs& args) {
  const AttentionOptions& options = args.options;
  const int64_t tokens = args.q.shape[0], sequences = args.cache.added.num_documents;
  const int64_t parts = (args.cache.capacity() + kPartKeys - 1) / kPartKeys;
  ArenaScope memory(context.scratch());
  const Tensor sums = memory.take({sequences, options.num_heads, parts, options.v_head_dim}, DType::kF32);
  const Tensor stats = memory.take({sequences, options.num_heads, parts, 2}, DType::kF32);
  const Tensor finished = memory.take({sequences, options.num_kv_heads}, DType::kI32);
  const auto rows_of = [](const Tensor& cache) {
    return Tensor{cache.data, cache.dtype, {cache.shape[0] * cache.shape[1], cache.shape[2]}, cache.device};
  };
  AttentionArgs several{.q = args.q,
                        .k = rows_of(args.cache.k),
                        .v = rows_of(args.cache.v),
                        .out = args.out,
                        .lse = {},
                        .options = options,
                        .sequences = args.cache.added};
  const bool by_hopper = several.k.shape[0] <= INT32_MAX / 2 && sm90::hopper_attention_serves(context, several);
  const Tensor lse =
      by_hopper || args.sinks.defined() ? memory.take({options.num_heads, tokens}, DType::kF32) : Tensor{};
  several.lse = lse;
  std::optional<AttentionTiles> tiles;
  if (by_hopper) tiles.emplace(memory, several);
  if (context.dry() || tokens == 0) return;
  const CachedKeys cached{.lengths = elements<int32_t>(args.cache.lengths),
                          .pages = elements<int32_t>(args.cache.pages),
                          .most_pages = static_cast<int>(args.cache.pages.shape[1])};
  const bool decodes_only = args.cache.added.max_seqlen == 1;
  append(context, args, cached, finished, by_hopper && !decodes_only);
  cuda::dispatch_float(args.q.dtype, [&](auto element) {
    using T = decltype(element);
    decode<T>(context,
              {.q = elements<T>(args.q),
               .k = elements<T>(args.cache.k),
               .v = elements<T>(args.cache.v),
               .out = elements<T>(args.out),
               .lse = elements<float>(lse),
               .sums = elements<float>(sums),
               .stats = elements<float>(stats),
               .finished = elements<int>(finished),
               .cu_seqlens = elements<int32_t>(args.cache.added.cu_seqlens),
               .cached = cached,
               .tokens = tokens,
               .num_heads = static_cast<int>(options.num_heads),
               .num_kv_heads = static_cast<int>(options.num_kv_heads),
               .head_dim = static_cast<int>(options.head_dim),
               .v_head_dim = static_cast<int>(options.v_head_dim),
               .parts = static_cast<int>(parts),
               .scale = options.scale,
               .window = options.sliding_window},
              sequences);
    if (decodes_only) return;
    if (by_hopper) return sm90::hopper_attention(context, several, *tiles, cached);
    launch_general_forward<T>(context, {.q = elements<T>(args.q),
                                        .k = elements<T>(args.cache.k),
                                        .v = elements<T>(args.cache.v),
                                        .out = elements<T>(args.out),
                                        .lse = elements<float>(lse),
                                        .cu_seqlens = elements<int32_t>(args.cache.added.cu_seqlens),
                                        .num_documents = static_cast<int>(sequences),
                                        .tokens = tokens,
                                        .num_heads = static_cast<int>(options.num_heads),
                                        .num_kv_heads = static_cast<int>(options.num_kv_heads),
                                        .head_dim = static_cast<int>(options.head_dim),
                                        .v_head_dim = static_cast<int>(options.v_head_dim),
                                        .scale = options.scale,
                                        .window = options.sliding_window,
                                        .cached = cached,
                                        .least_queries = 2});
  });
  if (args.sinks.defined()) apply_sinks(context, {args.sinks, args.out, lse});
}

void advance_cache(const Context& context, const AdvanceCacheArgs& args) {
  const int64_t sequences = args.added.num_documents;
  if (context.dry() || sequences == 0) return;
  advance_kernel<<<blocks_for(sequences, 128), 128, 0, stream_of(context)>>>(
      elements<int32_t>(args.lengths), elements<int32_t>(args.added.cu_seqlens), static_cast<int>(sequences));
  check_launch("advancing the key-value cache");
}

}  // namespace hone::cuda
