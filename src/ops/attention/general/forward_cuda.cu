// The forward pass of attention with float32 FMA, for any GPU and dtype: the reference of the tensor-core kernels, and
// the kernel of float32 runs.
#include "ops/attention/general/attention_cuda.h"

namespace hone::cuda {

namespace {

/// Maximum and sum over the 16 threads that share rows.
__device__ float maximum_of_row(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
__device__ float sum_of_row(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

constexpr size_t kForwardSharedBytes = sizeof(float) * kTileRows * (2 * kChunkStride + kScoreStride);

/// One tile of queries of one head against all keys that it attends to. v_head_dim is at most kDim.
template <class T, int kDim>
__global__ void __launch_bounds__(kTileThreads) general_forward_kernel(GeneralForward<T> args) {
  constexpr int kChunks = kDim / kChunk;
  extern __shared__ float4 shared[];
  float* a_chunk = reinterpret_cast<float*>(shared);
  float* b_chunk = a_chunk + kTileRows * kChunkStride;
  float* weights = b_chunk + kTileRows * kChunkStride;

  // Later tiles of a document attend to more keys; they start first.
  const DocumentTile tile =
      find_document_tile(args.cu_seqlens, args.num_documents, static_cast<int>(gridDim.x - 1 - blockIdx.x));
  if (tile.first >= tile.length || tile.length < args.least_queries) return;
  const int head = blockIdx.y, kv_head = head / (args.num_heads / args.num_kv_heads);
  const int dim = args.head_dim, v_dim = args.v_head_dim;
  const int64_t query_stride = int64_t{args.num_heads} * dim, key_stride = int64_t{args.num_kv_heads} * dim;
  const int64_t out_stride = int64_t{args.num_heads} * v_dim, v_stride = int64_t{args.num_kv_heads} * v_dim;
  static_assert(kCachePage % kTileRows == 0);
  const bool has_cache = args.cached.lengths != nullptr;
  const int64_t cached = has_cache ? args.cached.lengths[tile.document] : 0;
  if (has_cache && cached + tile.length > args.cached.capacity()) return;  // avoids stray accesses
  const T* q = args.q + (tile.begin + tile.first) * query_stride + head * dim;
  const T* k = args.k + kv_head * dim;
  const T* v = args.v + kv_head * v_dim;
  const int64_t queries = min(tile.length - tile.first, int64_t{kTileRows});
  const int64_t first_query = cached + tile.first, last_query = first_query + queries - 1;  // positions

  RowSums<kChunks> out = {};
  float largest[4], sum[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) largest[i] = -INFINITY;
  int64_t key = args.window > 0 ? max(first_query - args.window + 1, int64_t{0}) / kTileRows * kTileRows : 0;
  for (; key <= last_query; key += kTileRows) {
    const int64_t keys = min(last_query + 1 - key, int64_t{kTileRows});
    const int64_t row = has_cache ? args.cached.row(tile.document, key) : tile.begin + key;
    Scores scores = {};
    for (int first = 0; first < dim; first += kChunk) {
      __syncthreads();
      load_chunk(a_chunk, q, query_stride, queries, first, dim);
      load_chunk(b_chunk, k + row * key_stride, key_stride, keys, first, dim);
      __syncthreads();
      add_chunk_product(scores, a_chunk, b_chunk);
    }
    float correction[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t query = first_query + 4 * thread_row() + i;
      float row_largest = -INFINITY;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t at = key + thread_column() + 16 * j;
        const bool seen = at <= query && (args.window == 0 || at > query - args.window);
        scores[i][j] = seen ? args.scale * scores[i][j] : -INFINITY;
        row_largest = fmaxf(row_largest, scores[i][j]);
      }
      const float now_largest = fmaxf(largest[i], maximum_of_row(row_largest));
      const float offset = now_largest == -INFINITY ? 0.0f : now_largest;  // a window may mask the whole tile
      correction[i] = expf(largest[i] - offset);
      largest[i] = now_largest;
      sum[i] *= correction[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] = expf(scores[i][j] - offset);
        sum[i] += scores[i][j];
      }
    }
    store_scores(weights, scores);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      __syncthreads();
      load_chunk(b_chunk, v + row * v_stride, v_stride, keys, chunk * kChunk, v_dim);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[i][chunk][0] *= correction[i];
        out[i][chunk][1] *= correction[i];
      }
      add_weighted_rows<kChunks>(out, chunk, weights, b_chunk);
    }
  }

  T* to = args.out + (tile.begin + tile.first) * out_stride + head * v_dim;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float total = sum_of_row(sum[i]);
    const int row = 4 * thread_row() + i;
    if (row >= queries) continue;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int column = chunk * kChunk + 2 * thread_column();
      if (column < v_dim) to[row * out_stride + column] = from_float<T>(out[i][chunk][0] / total);
      if (column + 1 < v_dim) to[row * out_stride + column + 1] = from_float<T>(out[i][chunk][1] / total);
    }
    if (args.lse != nullptr && thread_column() == 0) {
      args.lse[head * args.tokens + tile.begin + tile.first + row] = largest[i] + logf(total);
    }
  }
}

}  // namespace

template <class T>
void launch_general_forward(const Context& context, const GeneralForward<T>& args) {
  HONE_ASSERT(args.head_dim <= kMaxGeneralHeadDim);
  if (args.tokens == 0) return;
  dispatch_padded_dim(args.v_head_dim, [&](auto padded) {
    const dim3 grid(tiles_of_documents(args.tokens, args.num_documents), static_cast<unsigned>(args.num_heads));
    general_forward_kernel<T, padded.value><<<grid, kTileThreads, kForwardSharedBytes, stream_of(context)>>>(args);
    check_launch("computing attention");
  });
}

template void launch_general_forward(const Context& context, const GeneralForward<float>& args);
template void launch_general_forward(const Context& context, const GeneralForward<__nv_bfloat16>& args);

}  // namespace hone::cuda
