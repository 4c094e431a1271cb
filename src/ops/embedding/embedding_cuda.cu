#include <math_constants.h>

#include "ops/cast/cast.h"
#include "ops/embedding/embedding.h"
#include "ops/row_math/vectors_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kElements = 8;

/// A warp copies a row.
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

/// A token and where it stands: keys of different places differ, so they have one sorted order.
__device__ inline uint64_t key_of(int32_t token, int64_t place) {
  return uint64_t{static_cast<uint32_t>(token)} << 32 | static_cast<uint64_t>(place);
}
__device__ inline int64_t token_of(uint64_t key) { return static_cast<int64_t>(key >> 32); }
__device__ inline int64_t place_of(uint64_t key) { return static_cast<int64_t>(key & 0xffffffffu); }

constexpr int kChunk = 2048, kSortThreads = 1024;

/// A block sorts the keys of a chunk of tokens (a bitonic network); missing ones are the largest key.
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

/// Keys of a sorted chunk below `key`.
__device__ inline int count_below(const uint64_t* chunk, uint64_t key) {
  int below = 0;
#pragma unroll 1
  for (int step = kChunk; step > 0; step /= 2) {
    if (below + step <= kChunk && chunk[below + step - 1] < key) below += step;
  }
  return below;
}

/// Merges the sorted chunks: a key's place is the number of keys below it in all of them.
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

/// The warp whose key is the first of its token adds that token's rows to dw in rising order, for 32 · kWidth columns.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_rows(const uint64_t* keys, const T* dy, float* dw, bool accumulate, int64_t count, int64_t vocab,
             int64_t hidden, int64_t padding_idx) {
  const int64_t first = int64_t{blockIdx.x};
  const int64_t token = token_of(keys[first]);
  if (first > 0 && token_of(keys[first - 1]) == token) return;
  if (token == padding_idx || token >= vocab) return;
  const int64_t warp = int64_t{blockIdx.y} * (kThreads / 32) + threadIdx.x / 32;
  const int64_t column = (warp * 32 + threadIdx.x % 32) * kWidth;
  if (column >= hidden) return;
  float sums[kWidth] = {};
  if (accumulate) load_floats(dw + token * hidden + column, sums);
  // The rows of a frequent token are loaded several at a time, and added one after another.
  constexpr int kRows = 8;
  for (int64_t i = first; i < count && token_of(keys[i]) == token; i += kRows) {
    Vector<T, kWidth> rows[kRows];
    bool present[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint64_t key = i + r < count ? keys[i + r] : ~uint64_t{0};
      present[r] = token_of(key) == token;
      if (present[r]) rows[r] = load_vector<kWidth>(dy + place_of(key) * hidden + column);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!present[r]) continue;
      float values[kWidth];
      widen(rows[r], values);
#pragma unroll
      for (int c = 0; c < kWidth; ++c) sums[c] += values[c];
    }
  }
  store_floats(dw + token * hidden + column, sums);
}

template <class T, int kWidth>
void launch_sum_rows(const Context& context, const EmbeddingGradArgs& args, const Tensor& sorted) {
  const int64_t rows = args.tokens.numel(), vocab = args.dw.dst.shape[0], hidden = args.dw.dst.shape[1];
  const dim3 grid(blocks_for(rows, 1), blocks_for(hidden, kThreads * kWidth));
  sum_rows<T, kWidth><<<grid, kThreads, 0, stream_of(context)>>>(
      reinterpret_cast<const uint64_t*>(sorted.data), elements<T>(args.dy), elements<float>(args.dw.dst),
      args.dw.beta != 0.0f, rows, vocab, hidden, args.padding_idx);
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
      launch_sum_rows<T, kWidth>(context, args, sorted);
    } else {
      launch_sum_rows<T, 1>(context, args, sorted);
    }
  });
  check_launch("summing gradients of embeddings");
}

}  // namespace hone::cuda
