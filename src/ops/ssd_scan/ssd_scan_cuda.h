// Shared by the CUDA kernels of the state-space scan: arguments, chunks, and products of small matrices in shared
// memory. Included by *_cuda.cu only.
#pragma once

#include "ops/rms_norm/norm_weight_cuda.h"
#include "ops/ssd_scan/ssd_scan.h"

namespace hone::cuda {

inline constexpr int kSsdThreads = 256;
/// Tokens of a chunk: what a CTA holds fits in the 99 KiB of shared memory that every GPU has.
template <class T>
inline constexpr int kSsdRows = static_cast<int>(sizeof(T) == 2 ? kSsdChunk : kSsdChunk / 2);

/// Chunks of all documents: document n's begin at item cu_seqlens[n] / rows + n.
inline int64_t ssd_items(const SsdScanArgs& args, int64_t rows) {
  return args.xbc.shape[0] / rows + args.sequences.num_documents;
}

/// Scratch of both passes. A document's states before its second, third, … chunk have slots from cu_seqlens[n] / rows
/// on, so all documents' slots differ.
struct SsdScratch {
  Tensor states;   ///< [T / rows, H, N, P]
  Tensor dstates;  ///< the same for their gradients, in backward
  Tensor growth;   ///< [items, H]: exp(Σ g) of each chunk but the last of a document

  SsdScratch(ArenaScope& memory, const SsdScanArgs& args, bool backward) {
    const int64_t rows = args.xbc.dtype == DType::kBF16 ? kSsdChunk : kSsdChunk / 2;
    const SsdHeads& heads = args.heads;
    const Shape shape{args.xbc.shape[0] / rows, heads.num_heads, heads.state_size, heads.head_dim};
    states = memory.take(shape, DType::kF32);
    if (backward) dstates = memory.take(shape, DType::kF32);
    growth = memory.take({ssd_items(args, rows), heads.num_heads}, DType::kF32);
  }
};

/// Computes scratch.states and scratch.growth.
void find_ssd_states(const Context& context, const SsdScanArgs& args, const SsdScratch& scratch);
/// Computes scratch.dstates from `dout`.
void find_ssd_state_gradients(const Context& context, const SsdScanArgs& args, const Tensor& dout,
                              const SsdScratch& scratch);

/// Δ and g of one token and head.
struct SsdStep {
  float delta, g;
  float slope;  ///< derivative of Δ with respect to dt
};

/// A chunk: `rows` tokens of a document from `row` on; none: the item has no chunk.
struct SsdPlace {
  int document, chunk, rows;
  int64_t row;
  int64_t after;  ///< slot of the state after it, if it is not the document's last
  bool last;

  __device__ bool first() const { return chunk == 0; }
};

/// The inputs as kernel arguments.
template <class T>
struct SsdArguments {
  const T *xbc, *dt;
  NormWeight a_log, dt_bias, d;
  const int32_t* cu_seqlens;
  int documents, heads, dim, groups, size, blocks;
  int64_t tokens, width;
  float min_step, max_step;

  explicit SsdArguments(const SsdScanArgs& args)
      : xbc(elements<T>(args.xbc)),
        dt(elements<T>(args.dt)),
        a_log(args.a_log),
        dt_bias(args.dt_bias),
        d(args.d),
        cu_seqlens(elements<int32_t>(args.sequences.cu_seqlens)),
        documents(static_cast<int>(args.sequences.num_documents)),
        heads(static_cast<int>(args.heads.num_heads)),
        dim(static_cast<int>(args.heads.head_dim)),
        groups(static_cast<int>(args.heads.num_groups)),
        size(static_cast<int>(args.heads.state_size)),
        blocks(static_cast<int>(args.heads.blocks())),
        tokens(args.xbc.shape[0]),
        width(args.heads.width()),
        min_step(args.heads.min_step),
        max_step(args.heads.max_step) {}

#ifdef __CUDACC__
  /// Offsets in xbc of a token's x, B and C, and in [T, H·P].
  __device__ int64_t x(int64_t token, int head) const { return token * width + head * dim; }
  __device__ int64_t b(int64_t token, int group) const { return token * width + heads * dim + group * size; }
  __device__ int64_t c(int64_t token, int group) const { return b(token, groups + group); }
  __device__ int64_t output(int64_t token, int head) const { return (token * heads + head) * dim; }
  __device__ int group_of(int head) const { return head / (heads / groups); }
  /// First element of a head's state in [slots, H, N, P].
  __device__ int64_t state(int64_t slot, int head) const { return (slot * heads + head) * size * dim; }

  __device__ SsdStep step(int64_t token, int head) const {
    const float raw = to_float(dt[token * heads + head]) + dt_bias.at(head);
    const float softplus = raw > 20.0f ? raw : log1pf(expf(raw));
    const bool inside = softplus >= min_step && softplus <= max_step;
    const float delta = fminf(fmaxf(softplus, min_step), max_step);
    return {.delta = delta, .g = -expf(a_log.at(head)) * delta, .slope = inside ? 1.0f / (1.0f + expf(-raw)) : 0.0f};
  }

  __device__ SsdPlace place(int64_t item) const {
    constexpr int kRows = kSsdRows<T>;
    int low = 0, high = documents;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (cu_seqlens[middle] / kRows + middle <= item ? low : high) = middle;
    }
    const int64_t begin = cu_seqlens[low], end = cu_seqlens[low + 1];
    SsdPlace place{};
    place.document = low;
    place.chunk = static_cast<int>(item - (begin / kRows + low));
    place.row = begin + int64_t{place.chunk} * kRows;
    place.rows = place.row < end ? static_cast<int>(min(end - place.row, int64_t{kRows})) : 0;
    place.after = begin / kRows + place.chunk;
    place.last = place.row + kRows >= end;
    return place;
  }
#endif
};

#ifdef __CUDACC__

/// Steps of a chunk's tokens and decays between them, in shared memory.
template <int kRows>
struct SsdTokens {
  float delta[kRows], g[kRows];
  float grown[kRows];   // exp(G_i)
  float to_end[kRows];  // exp(G_last − G_i)
  double sums[kRows];   // G_i: a decay is the exponential of a difference of these

  /// Called by all threads; barriers are before the first write and after the last.
  template <class T>
  __device__ void load(const SsdArguments<T>& in, const SsdPlace& place, int head) {
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    if (i < place.rows) {
      const SsdStep step = in.step(place.row + i, head);
      delta[i] = step.delta;
      g[i] = step.g;
    }
    __syncthreads();
    if (i == 0) {
      double sum = 0.0;
      for (int t = 0; t < place.rows; ++t) sums[t] = sum += static_cast<double>(g[t]);
    }
    __syncthreads();
    if (i < place.rows) {
      grown[i] = expf(static_cast<float>(sums[i]));
      to_end[i] = expf(static_cast<float>(sums[place.rows - 1] - sums[i]));
    }
    __syncthreads();
  }

  __device__ float decay(int i, int j) const { return expf(static_cast<float>(sums[i] - sums[j])); }
};

/// Elements between rows of a matrix in shared memory: an odd number of words, so that columns of it have no bank
/// conflicts.
template <class T>
__host__ __device__ constexpr int ssd_pitch(int width) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  return ((width + kPerWord - 1) / kPerWord | 1) * kPerWord;
}

/// to[i] ← from + i · stride, rows of `width`. Without a barrier.
template <class T>
__device__ void load_ssd_rows(const T* from, int64_t stride, int rows, int width, T* to) {
  const int pitch = ssd_pitch<T>(width);
  for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += kSsdThreads) {
    const int row = i / width, column = i % width;
    to[row * pitch + column] = from[row * stride + column];
  }
}

/// For rows i < m of the product Σ_k a(i, k) b(k, j), j < n, calls f(i, first, step, sums): sums[c] is that of column
/// j = first + c · step if j < n. The thread that has an element depends on m and n alone, and its `first` is below 32
/// for n <= 128. A barrier follows.
template <class A, class B, class F>
__device__ void ssd_product(int m, int n, int depth, const A& a, const B& b, const F& f) {
  const int rows = (m + 3) / 4, columns = (n + 3) / 4;
  for (int tile = static_cast<int>(threadIdx.x); tile < rows * columns; tile += kSsdThreads) {
    const int i0 = tile / columns, j0 = tile % columns;
    float sums[4][4] = {};
    for (int k = 0; k < depth; ++k) {
      float left[4], right[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        left[r] = i0 + r * rows < m ? a(i0 + r * rows, k) : 0.0f;
        right[r] = j0 + r * columns < n ? b(k, j0 + r * columns) : 0.0f;
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[r][c] = fmaf(left[r], right[c], sums[r][c]);
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (i0 + r * rows < m) f(i0 + r * rows, j0, columns, sums[r]);
    }
  }
  __syncthreads();
}

/// The same with f(i, j, sum) for each element.
template <class A, class B, class F>
__device__ void ssd_elements(int m, int n, int depth, const A& a, const B& b, const F& f) {
  ssd_product(m, n, depth, a, b, [&](int i, int first, int step, const float(&sums)[4]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (first + c * step < n) f(i, first + c * step, sums[c]);
    }
  });
}

#endif

}  // namespace hone::cuda
