// Three kernels: δ; then dk and dv, where a CTA visits all queries that attend to its keys, one head of the group after
// another; then dq, which recomputes the scores. So every sum has one owner and one order.
#include "ops/attention/attention_gradient_cuda.h"
#include "ops/attention/general/attention_cuda.h"

namespace hone::cuda {

namespace {

template <class T>
struct GeneralBackward {
  const T *q, *k, *v, *out, *dout;
  const float* lse;  ///< [Hq, T]
  float* delta;      ///< [Hq, T]
  const int32_t* cu_seqlens;
  int num_documents;
  int64_t tokens;
  int num_heads, num_kv_heads, head_dim, v_head_dim;
  float scale;
  int64_t window;
  Gradient dq, dk, dv;

  __device__ float lse_of(int head, int64_t row) const { return lse[head * tokens + row]; }
  __device__ int64_t query_stride() const { return int64_t{num_heads} * head_dim; }
  __device__ int64_t key_stride() const { return int64_t{num_kv_heads} * head_dim; }
  __device__ int64_t out_stride() const { return int64_t{num_heads} * v_head_dim; }
  __device__ int64_t value_stride() const { return int64_t{num_kv_heads} * v_head_dim; }
  __device__ bool sees(int64_t query, int64_t key) const {
    return key <= query && (window == 0 || key > query - window);
  }
};

/// The product is rounded as in forward: if a query attends to one key, its probability is exactly 1.
__device__ float probability(float scale, float score, float lse) { return expf(__fmul_rn(scale, score) - lse); }

/// delta[h, t] = dout · out, one thread each: in the same order as dout · v, so that dS is exactly 0 for a query that
/// attends to one key.
template <class T>
__global__ void delta_kernel(GeneralBackward<T> args) {
  const int64_t pair = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (pair >= args.tokens * args.num_heads) return;
  const int64_t token = pair / args.num_heads, head = pair % args.num_heads;
  float sum = 0.0f;
  for (int64_t i = pair * args.v_head_dim; i < (pair + 1) * args.v_head_dim; ++i) {
    sum = fmaf(to_float(args.dout[i]), to_float(args.out[i]), sum);
  }
  args.delta[head * args.tokens + token] = sum;
}

constexpr size_t kBackwardSharedBytes = sizeof(float) * kTileRows * (4 * kChunkStride + 2 * kScoreStride);

/// Four chunks and two tiles of scores in shared memory.
struct SharedTiles {
  float *q, *dout, *k, *v;
  float *p, *ds;

  __device__ explicit SharedTiles(float* memory) {
    constexpr int kChunkFloats = kTileRows * kChunkStride;
    q = memory, dout = q + kChunkFloats, k = dout + kChunkFloats, v = k + kChunkFloats;
    p = v + kChunkFloats, ds = p + kTileRows * kScoreStride;
  }
};

/// Stores rows of sums times `factor` to a gradient with rows `stride` apart whose first element is `first`.
template <int kChunks>
__device__ void store_rows(const Gradient& gradient, const RowSums<kChunks>& sums, float factor, int64_t first,
                           int64_t stride, int64_t rows, int dim) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 4 * thread_row() + i;
    if (row >= rows) continue;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int column = chunk * kChunk + 2 * thread_column() + x;
        if (column < dim) gradient.store(first + row * stride + column, factor * sums[i][chunk][x]);
      }
    }
  }
}

/// dk and dv of one tile of keys of one key-value head. Tiles of scores are [keys, queries]. Both head sizes are at
/// most kDim.
template <class T, int kDim>
__global__ void __launch_bounds__(kTileThreads) dk_dv_kernel(GeneralBackward<T> args) {
  constexpr int kChunks = kDim / kChunk;
  extern __shared__ float4 shared[];
  const SharedTiles tiles(reinterpret_cast<float*>(shared));

  // Earlier tiles of a document have more queries attending to them; they start first.
  const DocumentTile tile = find_document_tile(args.cu_seqlens, args.num_documents, static_cast<int>(blockIdx.x));
  if (tile.first >= tile.length) return;
  const int kv_head = blockIdx.y, group = args.num_heads / args.num_kv_heads;
  const int dim = args.head_dim, v_dim = args.v_head_dim;
  const int64_t query_stride = args.query_stride(), key_stride = args.key_stride();
  const int64_t out_stride = args.out_stride(), value_stride = args.value_stride();
  const int64_t keys = min(tile.length - tile.first, int64_t{kTileRows});
  const int64_t first_key = (tile.begin + tile.first) * key_stride + kv_head * dim;
  const int64_t first_value = (tile.begin + tile.first) * value_stride + kv_head * v_dim;
  int64_t end = tile.length;
  if (args.window > 0) end = min(end, tile.first + keys - 1 + args.window);

  RowSums<kChunks> dk = {}, dv = {};
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query = tile.first; query < end; query += kTileRows) {
      const int64_t queries = min(end - query, int64_t{kTileRows}), row = tile.begin + query;
      const int64_t first_query = row * query_stride + head * dim, first_out = row * out_stride + head * v_dim;
      Scores p = {}, ds = {};
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        __syncthreads();
        load_chunk(tiles.q, args.q + first_query, query_stride, queries, chunk * kChunk, dim);
        load_chunk(tiles.dout, args.dout + first_out, out_stride, queries, chunk * kChunk, v_dim);
        load_chunk(tiles.k, args.k + first_key, key_stride, keys, chunk * kChunk, dim);
        load_chunk(tiles.v, args.v + first_value, value_stride, keys, chunk * kChunk, v_dim);
        __syncthreads();
        add_chunk_product(p, tiles.k, tiles.q);
        add_chunk_product(ds, tiles.v, tiles.dout);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = thread_column() + 16 * j;
        const float lse = column < queries ? args.lse_of(head, row + column) : 0.0f;
        const float delta = column < queries ? args.delta[head * args.tokens + row + column] : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool seen = column < queries && args.sees(query + column, tile.first + 4 * thread_row() + i);
          p[i][j] = seen ? probability(args.scale, p[i][j], lse) : 0.0f;
          ds[i][j] = seen ? p[i][j] * (ds[i][j] - delta) : 0.0f;
        }
      }
      store_scores(tiles.p, p);
      store_scores(tiles.ds, ds);
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        __syncthreads();
        load_chunk(tiles.q, args.q + first_query, query_stride, queries, chunk * kChunk, dim);
        load_chunk(tiles.dout, args.dout + first_out, out_stride, queries, chunk * kChunk, v_dim);
        __syncthreads();
        add_weighted_rows<kChunks>(dk, chunk, tiles.ds, tiles.q);
        add_weighted_rows<kChunks>(dv, chunk, tiles.p, tiles.dout);
      }
    }
  }
  if (args.dk.data != nullptr) store_rows<kChunks>(args.dk, dk, args.scale, first_key, key_stride, keys, dim);
  if (args.dv.data != nullptr) store_rows<kChunks>(args.dv, dv, 1.0f, first_value, value_stride, keys, v_dim);
}

/// dq of one tile of queries of one head. Tiles of scores are [queries, keys]. Both head sizes are at most kDim.
template <class T, int kDim>
__global__ void __launch_bounds__(kTileThreads) dq_kernel(GeneralBackward<T> args) {
  constexpr int kChunks = kDim / kChunk;
  extern __shared__ float4 shared[];
  const SharedTiles tiles(reinterpret_cast<float*>(shared));

  const DocumentTile tile =
      find_document_tile(args.cu_seqlens, args.num_documents, static_cast<int>(gridDim.x - 1 - blockIdx.x));
  if (tile.first >= tile.length) return;
  const int head = blockIdx.y, kv_head = head / (args.num_heads / args.num_kv_heads);
  const int dim = args.head_dim, v_dim = args.v_head_dim;
  const int64_t query_stride = args.query_stride(), key_stride = args.key_stride();
  const int64_t out_stride = args.out_stride(), value_stride = args.value_stride();
  const int64_t queries = min(tile.length - tile.first, int64_t{kTileRows}), row = tile.begin + tile.first;
  const int64_t first_query = row * query_stride + head * dim, first_out = row * out_stride + head * v_dim;
  const int64_t end = tile.first + queries;
  float lse[4], delta[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = 4 * thread_row() + i;
    lse[i] = r < queries ? args.lse_of(head, row + r) : 0.0f;
    delta[i] = r < queries ? args.delta[head * args.tokens + row + r] : 0.0f;
  }

  RowSums<kChunks> dq = {};
  int64_t key = args.window > 0 ? max(tile.first - args.window + 1, int64_t{0}) / kTileRows * kTileRows : 0;
  for (; key < end; key += kTileRows) {
    const int64_t keys = min(end - key, int64_t{kTileRows});
    const int64_t first_key = (tile.begin + key) * key_stride + kv_head * dim;
    const int64_t first_value = (tile.begin + key) * value_stride + kv_head * v_dim;
    Scores p = {}, ds = {};
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      __syncthreads();
      load_chunk(tiles.q, args.q + first_query, query_stride, queries, chunk * kChunk, dim);
      load_chunk(tiles.dout, args.dout + first_out, out_stride, queries, chunk * kChunk, v_dim);
      load_chunk(tiles.k, args.k + first_key, key_stride, keys, chunk * kChunk, dim);
      load_chunk(tiles.v, args.v + first_value, value_stride, keys, chunk * kChunk, v_dim);
      __syncthreads();
      add_chunk_product(p, tiles.q, tiles.k);
      add_chunk_product(ds, tiles.dout, tiles.v);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int r = 4 * thread_row() + i, column = thread_column() + 16 * j;
        const bool seen = r < queries && column < keys && args.sees(tile.first + r, key + column);
        ds[i][j] = seen ? probability(args.scale, p[i][j], lse[i]) * (ds[i][j] - delta[i]) : 0.0f;
      }
    }
    store_scores(tiles.ds, ds);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      __syncthreads();
      load_chunk(tiles.k, args.k + first_key, key_stride, keys, chunk * kChunk, dim);
      __syncthreads();
      add_weighted_rows<kChunks>(dq, chunk, tiles.ds, tiles.k);
    }
  }
  store_rows<kChunks>(args.dq, dq, args.scale, first_query, query_stride, queries, dim);
}

template <class T>
void launch_backward(const Context& context, const GeneralBackward<T>& args) {
  const cudaStream_t stream = stream_of(context);
  delta_kernel<T><<<blocks_for(args.tokens * args.num_heads, 256), 256, 0, stream>>>(args);
  check_launch("computing the delta of attention");
  dispatch_padded_dim(std::max(args.head_dim, args.v_head_dim), [&](auto padded) {
    const unsigned tiles = tiles_of_documents(args.tokens, args.num_documents);
    const auto launch = [&](auto* kernel, int heads) {
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBackwardSharedBytes}),
            "preparing attention's gradients");
      kernel<<<dim3(tiles, static_cast<unsigned>(heads)), kTileThreads, kBackwardSharedBytes, stream>>>(args);
      check_launch("computing attention's gradients");
    };
    if (args.dk.data != nullptr || args.dv.data != nullptr) launch(dk_dv_kernel<T, padded.value>, args.num_kv_heads);
    if (args.dq.data != nullptr) launch(dq_kernel<T, padded.value>, args.num_heads);
  });
}

}  // namespace

void general_attention_backward(const Context& context, const AttentionBackwardArgs& args, const Tensor& delta) {
  const AttentionArgs& forward = args.forward;
  const int64_t tokens = forward.q.shape[0], num_heads = forward.options.num_heads;
  if (tokens == 0) return;
  cuda::dispatch_float(forward.q.dtype, [&](auto element) {
    using T = decltype(element);
    launch_backward<T>(context, {.q = elements<T>(forward.q),
                                 .k = elements<T>(forward.k),
                                 .v = elements<T>(forward.v),
                                 .out = elements<T>(forward.out),
                                 .dout = elements<T>(args.dout),
                                 .lse = elements<float>(forward.lse),
                                 .delta = elements<float>(delta),
                                 .cu_seqlens = elements<int32_t>(forward.sequences.cu_seqlens),
                                 .num_documents = static_cast<int>(forward.sequences.num_documents),
                                 .tokens = tokens,
                                 .num_heads = static_cast<int>(num_heads),
                                 .num_kv_heads = static_cast<int>(forward.options.num_kv_heads),
                                 .head_dim = static_cast<int>(forward.options.head_dim),
                                 .v_head_dim = static_cast<int>(forward.options.v_head_dim),
                                 .scale = forward.options.scale,
                                 .window = forward.options.sliding_window,
                                 .dq = Gradient(args.dq),
                                 .dk = Gradient(args.dk),
                                 .dv = Gradient(args.dv)});
  });
}

}  // namespace hone::cuda
