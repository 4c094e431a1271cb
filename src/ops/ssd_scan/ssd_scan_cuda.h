// Shared by the CUDA kernels of the state-space scan: arguments and chunks. Included by *_cuda.cu only.
#pragma once

#include "ops/rms_norm/norm_weight_cuda.h"
#include "ops/ssd_scan/ssd_scratch.h"

namespace hone::cuda {

/// ssd_rows() of inputs of this type.
template <class T>
inline constexpr int kSsdRows = static_cast<int>(sizeof(T) == 2 ? kSsdChunk : kSsdChunk / 2);

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

}  // namespace hone::cuda
