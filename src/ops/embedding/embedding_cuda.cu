#include <math_constants.h>

#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/cast/cast.h"
#include "ops/embedding/embedding.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kElements = 8;

/// One warp copies a row.
template <class From, class To, bool kVectors>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const int32_t* tokens, const From* w, To* y, int64_t rows, int64_t vocab, int64_t hidden) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const int64_t token = tokens[row];
  const bool known = token >= 0 && token < vocab;
  const From* from = w + (known ? token : 0) * hidden;
  To* to = y + row * hidden;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kVectors) {
#pragma unroll 4
    for (int64_t i = int64_t{lane} * kElements; i < hidden; i += 32 * kElements) {
      float values[kElements];
      load_floats(from + i, values);
      if (!known) {
#pragma unroll
        for (float& value : values) value = CUDART_NAN_F;
      }
      store_floats(to + i, values);
    }
  } else {
    for (int64_t i = lane; i < hidden; i += 32) to[i] = from_float<To>(known ? to_float(from[i]) : CUDART_NAN_F);
  }
}

/// A token and its position: keys of different positions differ, so the sorted order is unique.
__device__ inline uint64_t key_of(int32_t token, int64_t place) {
  return uint64_t{static_cast<uint32_t>(token)} << 32 | static_cast<uint64_t>(place);
}
__device__ inline int64_t token_of(uint64_t key) { return static_cast<int64_t>(key >> 32); }
__device__ inline int64_t place_of(uint64_t key) { return static_cast<int64_t>(key & 0xffffffffu); }

constexpr int kChunk = 2048, kSortThreads = 1024;

/// A CTA sorts the keys of a chunk of tokens (a bitonic network); missing ones are the largest key.
__global__ void __launch_bounds__(kSortThreads) sort_chunks(const int32_t* tokens, uint64_t* keys, int64_t count) {
  __shared__ uint64_t chunk[kChunk];
  const int64_t begin = int64_t{blockIdx.x} * kChunk;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk; i += kSortThreads) {
    chunk[i] = begin + i < count ? key_of(tokens[begin + i], begin + i) : ~uint64_t{0};
  }
  for (int width = 2; width <= kChunk; width *= 2) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      __syncthreads();
      const int thread = static_cast<int>(threadIdx.x);
      const int low = thread / distance * 2 * distance + thread % distance, high = low + distance;
      const bool rising = (low & width) == 0;
      const uint64_t a = chunk[low], b = chunk[high];
      if ((a > b) == rising) {
        chunk[low] = b;
        chunk[high] = a;
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kChunk; i += kSortThreads) keys[begin + i] = chunk[i];
}

/// Number of keys of a sorted chunk below `key`.
__device__ inline int count_below(const uint64_t* chunk, uint64_t key) {
  int below = 0;
#pragma unroll 1
  for (int step = kChunk; step > 0; step /= 2) {
    if (below + step <= kChunk && chunk[below + step - 1] < key) below += step;
  }
  return below;
}

/// Merges the sorted chunks: a key's position is the number of keys below it in all of them.
__global__ void __launch_bounds__(kThreads)
    merge_chunks(const uint64_t* chunks, uint64_t* sorted, int64_t count, int64_t num_chunks) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint64_t key = chunks[at];
  if (key == ~uint64_t{0}) return;
  const int64_t own = at / kChunk;
  int64_t rank = at % kChunk;
  for (int64_t c = 0; c < num_chunks; ++c) {
    if (c != own) rank += count_below(chunks + c * kChunk, key);
  }
  sorted[rank] = key;
}

/// Positions of the sorted tokens that a warp sums. A run of one token that continues in the next window leaves its sum
/// there in `partial`: otherwise all warps would wait for the one with a frequent token.
constexpr int kWindow = 32;

struct SortedTokens {
  const uint64_t* keys;
  int64_t count, vocab, padding_idx;

  __device__ int64_t token(int64_t i) const { return token_of(keys[i]); }
  __device__ bool continues(int64_t i) const { return i > 0 && token(i - 1) == token(i); }
  __device__ bool wanted(int64_t token) const { return token < vocab && token != padding_idx; }
};

/// First column of a warp's lane, which has kWidth of them.
template <int kWidth>
__device__ int64_t column_of_lane() {
  return ((int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth);
}

/// A CTA sums the rows of a window: dw (or for a run that continues from the previous window, its row of partial
/// [windows, H]) = Σ dy + before.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_windows(const SortedTokens sorted, const T* dy, float* dw, float* partial, bool accumulate, int64_t hidden) {
  constexpr int kRows = 8;  // loaded together, and added one after another
  const int64_t column = column_of_lane<kWidth>();
  if (column >= hidden) return;
  const int64_t begin = int64_t{blockIdx.x} * kWindow, end = min(sorted.count, begin + kWindow);
  const bool continued = sorted.continues(begin);
  float sums[kWidth];
  float* target = nullptr;
  for (int64_t first = begin; first < end; first += kRows) {
    Vector<T, kWidth> rows[kRows];
    Vector<float, kWidth> before[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t i = first + r;
      if (i >= end) continue;
      rows[r] = load_vector<kWidth>(dy + place_of(sorted.keys[i]) * hidden + column);
      const bool starts = i == begin ? !continued : !sorted.continues(i);
      if (accumulate && starts && sorted.wanted(sorted.token(i))) {
        before[r] = load_vector<kWidth>(dw + sorted.token(i) * hidden + column);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t i = first + r;
      if (i >= end) continue;
      if (i == begin || !sorted.continues(i)) {
        if (target != nullptr) store_floats(target, sums);
        const int64_t token = sorted.token(i);
        const bool own = i != begin || !continued;
        target = !sorted.wanted(token) ? nullptr
                 : own                 ? dw + token * hidden + column
                                       : partial + int64_t{blockIdx.x} * hidden + column;
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
        if (accumulate && own && target != nullptr) widen(before[r], sums);
      }
      float values[kWidth];
      widen(rows[r], values);
#pragma unroll
      for (int c = 0; c < kWidth; ++c) sums[c] += values[c];
    }
  }
  if (target != nullptr) store_floats(target, sums);
}

/// The CTA of the window after the one in which a run started adds the run's further sums to dw, in order.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    join_windows(const SortedTokens sorted, const float* partial, float* dw, int64_t hidden) {
  const int64_t column = column_of_lane<kWidth>();
  int64_t window = int64_t{blockIdx.x} + 1;
  const int64_t token = sorted.token(window * kWindow);
  const auto goes_on = [&](int64_t w) {
    return w * kWindow < sorted.count && sorted.token(w * kWindow) == token && sorted.continues(w * kWindow);
  };
  if (column >= hidden || !goes_on(window) || goes_on(window - 1) || !sorted.wanted(token)) return;
  float sums[kWidth];
  load_floats(dw + token * hidden + column, sums);
#pragma unroll 4
  for (; goes_on(window); ++window) {
    float values[kWidth];
    load_floats(partial + window * hidden + column, values);
#pragma unroll
    for (int c = 0; c < kWidth; ++c) sums[c] += values[c];
  }
  store_floats(dw + token * hidden + column, sums);
}

template <class T, int kWidth>
void launch_sums(const Context& context, const EmbeddingGradArgs& args, const Tensor& keys, const Tensor& partial) {
  const int64_t windows = partial.shape[0], hidden = partial.shape[1];
  const SortedTokens sorted{.keys = reinterpret_cast<const uint64_t*>(keys.data),
                            .count = args.tokens.numel(),
                            .vocab = args.dw.dst.shape[0],
                            .padding_idx = args.padding_idx};
  const unsigned column_blocks = blocks_for(hidden, kThreads * kWidth);
  sum_windows<T, kWidth><<<dim3(blocks_for(windows, 1), column_blocks), kThreads, 0, stream_of(context)>>>(
      sorted, elements<T>(args.dy), elements<float>(args.dw.dst), elements<float>(partial), args.dw.beta != 0.0f,
      hidden);
  check_launch("summing gradients of embeddings");
  if (windows == 1) return;
  join_windows<kWidth><<<dim3(blocks_for(windows - 1, 1), column_blocks), kThreads, 0, stream_of(context)>>>(
      sorted, elements<float>(partial), elements<float>(args.dw.dst), hidden);
  check_launch("joining gradients of embeddings");
}

}  // namespace

void embedding(const Context& context, const EmbeddingArgs& args) {
  const int64_t rows = args.tokens.numel(), vocab = args.w.shape[0], hidden = args.w.shape[1];
  if (context.dry() || rows == 0) return;
  const bool vectors = !context.stream().general_kernels() && allows_vectors(args.w, hidden, kElements) &&
                       allows_vectors(args.y, hidden, kElements);
  cuda::dispatch_float(args.w.dtype, [&](auto from) {
    cuda::dispatch_float(args.y.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      const auto kernel = vectors ? &embedding_kernel<From, To, true> : &embedding_kernel<From, To, false>;
      kernel<<<blocks_for(rows, kThreads / 32), kThreads, 0, stream_of(context)>>>(
          elements<int32_t>(args.tokens), elements<From>(args.w), elements<To>(args.y), rows, vocab, hidden);
    });
  });
  check_launch("looking up embeddings");
}

void embedding_grad(const Context& context, const EmbeddingGradArgs& args) {
  const int64_t rows = args.tokens.numel(), hidden = args.dw.dst.shape[1];
  const int64_t chunks = (rows + kChunk - 1) / kChunk;
  ArenaScope scratch(context.scratch());
  const Tensor keys = scratch.take({chunks * kChunk}, DType::kI64), sorted = scratch.take({rows}, DType::kI64);
  const Tensor partial = scratch.take({(rows + kWindow - 1) / kWindow, hidden}, DType::kF32);
  if (context.dry()) return;
  if (args.dw.beta == 0.0f) cuda::fill_zero(context, args.dw.dst);
  if (rows == 0) return;
  auto* unmerged = reinterpret_cast<uint64_t*>(keys.data);
  sort_chunks<<<blocks_for(chunks, 1), kSortThreads, 0, stream_of(context)>>>(elements<int32_t>(args.tokens), unmerged,
                                                                              rows);
  check_launch("sorting tokens");
  merge_chunks<<<blocks_for(chunks * kChunk, kThreads), kThreads, 0, stream_of(context)>>>(
      unmerged, reinterpret_cast<uint64_t*>(sorted.data), rows, chunks);
  check_launch("merging sorted tokens");
  constexpr int kWidth = 4;
  const bool vectors = !context.stream().general_kernels() && allows_vectors(args.dy, hidden, kWidth) &&
                       allows_vectors(args.dw.dst, hidden, kWidth);
  cuda::dispatch_float(args.dy.dtype, [&](auto element) {
    using T = decltype(element);
    if (vectors) {
      launch_sums<T, kWidth>(context, args, sorted, partial);
    } else {
      launch_sums<T, 1>(context, args, sorted, partial);
    }
  });
}

}  // namespace hone::cuda
