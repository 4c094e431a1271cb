// The scan of a state along its document, forward and backward, chunk by chunk. A CTA has some columns of the state,
// which are independent of each other, in registers: eight warps with 16 rows each. In products between tokens and
// columns a warp has 16 tokens and half of the columns.
//
// Bound by latency: while one chunk is processed, the next ones are copied, as many as fit in shared memory (86 to 218
// KB). Speeds: delta_chunks_cuda.h.
#include "kernels/cuda/tiers.h"
#include "ops/gated_delta_rule/delta_chunks_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWide = padded(kDeltaDim), kNarrow = padded(kDeltaRows);

/// The tiles that a chunk reads.
template <int kColumns>
struct ChunkTiles {
  Half w[kDeltaRows * kWide], k[kDeltaRows * kWide], q[kDeltaRows * kWide];
  Half p[kDeltaRows * kNarrow];
  Half rows[kDeltaRows * padded(kColumns)];  // rows of U or dout
  DeltaScales scales[kDeltaRows];
};

template <int kColumns, int kStages>
struct ScanShared {
  ChunkTiles<kColumns> tiles[kStages];
  Half state[kDeltaDim * padded(kColumns)];
  Half plain[kDeltaRows * padded(kColumns)], scaled[kDeltaRows * padded(kColumns)];
};

static_assert(sizeof(ScanShared<32, 1>) <= kLeastDeltaShared);

/// Columns of one document's and head's state.
struct ScanPlace {
  int64_t begin;
  int length, chunks, head, key_head, first_column;

  template <class T>
  __device__ ScanPlace(const DeltaInputs<T>& in, int columns) {
    const int parts = kDeltaDim / columns;
    int64_t item = blockIdx.x;
    first_column = static_cast<int>(item % parts) * columns;
    item /= parts;
    head = static_cast<int>(item % in.value_heads);
    key_head = head / in.group();
    const int64_t document = item / in.value_heads;
    begin = in.cu_seqlens[document];
    length = static_cast<int>(in.cu_seqlens[document + 1] - begin);
    chunks = (length + kDeltaRows - 1) / kDeltaRows;
  }
  __device__ int64_t token(int chunk) const { return begin + int64_t{chunk} * kDeltaRows; }
  __device__ int valid(int chunk) const { return min(kDeltaRows, length - chunk * kDeltaRows); }
};

/// Which tiles a chunk needs.
struct TilesWanted {
  bool w, k, q, p;
};

template <int kColumns>
__device__ void copy_chunk(ChunkTiles<kColumns>& tiles, const DeltaInputs<Half>& in, const DeltaBuffers& buffers,
                           const ScanPlace& place, int chunk, const Half* rows, const TilesWanted& wanted) {
  const int64_t token = place.token(chunk), at = token * in.value_heads + place.head;
  const int64_t stride = in.value_heads;
  const int valid = place.valid(chunk);
  const auto wide = [&](Half* to, const Half* from, int64_t row_stride) {
    copy_rows<kDeltaRows, kDeltaDim, kThreads>(to, from, row_stride, valid);
  };
  if (wanted.w) wide(tiles.w, buffers.w + at * kDeltaDim, stride * kDeltaDim);
  if (wanted.k) wide(tiles.k, in.qkv + in.key(token, place.key_head), in.width);
  if (wanted.q) wide(tiles.q, in.qkv + in.query(token, place.key_head), in.width);
  if (wanted.p) {
    copy_rows<kDeltaRows, kDeltaRows, kThreads>(tiles.p, buffers.p + at * kDeltaRows, stride * kDeltaRows, valid);
  }
  copy_rows<kDeltaRows, kColumns, kThreads>(tiles.rows, rows + at * kDeltaDim + place.first_column, stride * kDeltaDim,
                                            valid);
  const int row = static_cast<int>(threadIdx.x);
  if (row < kDeltaRows) {
    cp_async_16(shared_address(&tiles.scales[row]), buffers.scales + at + (row < valid ? row * stride : 0),
                row < valid);
  }
  cp_async_commit();
}

/// Stores this warp's rows of the state as bfloat16 to shared memory.
template <int kColumns>
__device__ void publish(Sums<1, kColumns / 8>& state, Half* to) {
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16;
  for_pairs(state, [&](int row, int column, float first, float second) {
    store_pair(to + (first_row + row) * padded(kColumns) + column, first, second);
  });
}

template <int kWideTiles>
__device__ void scale_all(Sums<1, kWideTiles>& sums, float factor) {
#pragma unroll
  for (auto& wide : sums[0]) {
#pragma unroll
    for (float& value : wide) value *= factor;
  }
}

/// Start of a warp's part of a product between tokens and columns.
template <int kColumns>
struct WarpPart {
  static constexpr int kTiles = kColumns / 16;
  int warp = static_cast<int>(threadIdx.x) / 32;
  int row = warp % 4 * 16, column = warp / 4 * (kColumns / 2);
  __device__ int at(int r, int c) const { return (row + r) * padded(kColumns) + column + c; }
};

/// Waits until all threads see `chunk`, and starts the copy of the chunk `ahead`. Copies run kStages − 1 chunks ahead;
/// the tiles that they overwrite were read before the barrier above.
template <int kStages, class Copy>
__device__ void await_chunk(const Copy& copy, int chunk, int ahead) {
  if constexpr (kStages == 1) {
    __syncthreads();
    copy(chunk);
    cp_async_wait<0>();
  } else {
    cp_async_wait<kStages - 2>();
  }
  __syncthreads();
  if constexpr (kStages > 1) copy(ahead);
}

template <int kColumns, int kStages, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    scan_kernel(const DeltaInputs<Half> in, const DeltaBuffers buffers, Half* out) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<ScanShared<kColumns, kStages>*>(memory);
  const ScanPlace place(in, kColumns);
  const auto copy = [&](int chunk) {
    if (chunk >= place.chunks) return cp_async_commit();
    const bool before = chunk > 0, behind = chunk + 1 < place.chunks;
    copy_chunk(shared.tiles[chunk % kStages], in, buffers, place, chunk, buffers.u,
               {.w = before, .k = behind, .q = before && !kBackward, .p = !kBackward});
  };
  const WarpPart<kColumns> part;
  Sums<1, kColumns / 8> state = {};
  for (int chunk = 0; chunk < kStages - 1; ++chunk) copy(chunk);
  for (int chunk = 0; chunk < place.chunks; ++chunk) {
    const ChunkTiles<kColumns>& tiles = shared.tiles[chunk % kStages];
    const int64_t at = place.token(chunk) * in.value_heads + place.head;
    const int valid = place.valid(chunk);
    await_chunk<kStages>(copy, chunk, chunk + kStages - 1);

    const ByDepth<kColumns> before{shared.state};
    Sums<1, part.kTiles> known = {}, read = {};
    if (chunk > 0) {
      if constexpr (!kBackward) {
        add_products(known, read, ByRow<kDeltaDim>{tiles.w}, ByRow<kDeltaDim>{tiles.q}, part.row, before, part.column,
                     kDeltaDim);
      } else {
        add_product(known, ByRow<kDeltaDim>{tiles.w}, part.row, before, part.column, 0, kDeltaDim);
        write_rows<kDeltaDim, kColumns, kThreads>(
            buffers.states + delta_slot(place.begin, chunk - 1, in.value_heads, place.head) + place.first_column,
            kDeltaDim, shared.state, kDeltaDim);
      }
    }
    for_pairs(known, [&](int r, int c, float first, float second) {
      const float2 u = load_pair(tiles.rows + part.at(r, c));
      const float scale = tiles.scales[part.row + r].key;
      store_pair(shared.plain + part.at(r, c), u.x - first, u.y - second);
      store_pair(shared.scaled + part.at(r, c), scale * (u.x - first), scale * (u.y - second));
    });
    __syncthreads();

    if (chunk + 1 < place.chunks) {
      scale_all(state, tiles.scales[kDeltaRows - 1].grown);
      add_product(state, ByDepth<kDeltaDim>{tiles.k}, 16 * part.warp, ByDepth<kColumns>{shared.scaled}, 0, 0,
                  kDeltaRows);
      publish<kColumns>(state, shared.state);
    }
    if constexpr (kBackward) {
      write_rows<kDeltaRows, kColumns, kThreads>(buffers.u + at * kDeltaDim + place.first_column,
                                                 int64_t{in.value_heads} * kDeltaDim, shared.plain, valid);
    } else {
      for_pairs(read, [&](int r, int, float& first, float& second) {
        const float scale = tiles.scales[part.row + r].query;
        first *= scale, second *= scale;
      });
      add_product(read, ByRow<kDeltaRows>{tiles.p}, part.row, ByDepth<kColumns>{shared.plain}, part.column, 0,
                  kDeltaRows);
      for_pairs(read, [&](int r, int c, float first, float second) {
        const int row = part.row + r;
        if (row >= valid) return;
        store_pair(out + (at + row * int64_t{in.value_heads}) * kDeltaDim + place.first_column + part.column + c, first,
                   second);
      });
    }
  }
}

template <int kColumns, int kStages>
__global__ void __launch_bounds__(kThreads)
    scan_back_kernel(const DeltaInputs<Half> in, const DeltaBuffers buffers, const Half* dout) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<ScanShared<kColumns, kStages>*>(memory);
  const ScanPlace place(in, kColumns);
  const auto copy = [&](int chunk) {
    if (chunk < 0) return cp_async_commit();
    const bool before = chunk > 0, behind = chunk + 1 < place.chunks;
    copy_chunk(shared.tiles[chunk % kStages], in, buffers, place, chunk, dout,
               {.w = before, .k = behind, .q = before, .p = true});
  };
  const WarpPart<kColumns> part;
  Sums<1, kColumns / 8> dstate = {};
  for (int i = 0; i < kStages - 1; ++i) copy(place.chunks - 1 - i);
  for (int chunk = place.chunks - 1; chunk >= 0; --chunk) {
    const ChunkTiles<kColumns>& tiles = shared.tiles[chunk % kStages];
    const int64_t at = place.token(chunk) * in.value_heads + place.head;
    await_chunk<kStages>(copy, chunk, chunk - (kStages - 1));

    Sums<1, part.kTiles> dfresh = {};
    if (chunk + 1 < place.chunks) {
      add_product(dfresh, ByRow<kDeltaDim>{tiles.k}, part.row, ByDepth<kColumns>{shared.state}, part.column, 0,
                  kDeltaDim);
      for_pairs(dfresh, [&](int r, int, float& first, float& second) {
        const float scale = tiles.scales[part.row + r].key;
        first *= scale, second *= scale;
      });
      write_rows<kDeltaDim, kColumns, kThreads>(
          buffers.dstates + delta_slot(place.begin, chunk, in.value_heads, place.head) + place.first_column, kDeltaDim,
          shared.state, kDeltaDim);
    }
    add_product(dfresh, ByDepth<kDeltaRows>{tiles.p}, part.row, ByDepth<kColumns>{tiles.rows}, part.column, 0,
                kDeltaRows);
    for_pairs(dfresh, [&](int r, int c, float first, float second) {
      store_pair(shared.plain + part.at(r, c), -first, -second);
      const float2 gradient = load_pair(tiles.rows + part.at(r, c));
      const float scale = tiles.scales[part.row + r].query;
      store_pair(shared.scaled + part.at(r, c), scale * gradient.x, scale * gradient.y);
    });
    __syncthreads();
    if (chunk > 0) {
      scale_all(dstate, tiles.scales[kDeltaRows - 1].grown);
      add_product(dstate, ByDepth<kDeltaDim>{tiles.q}, 16 * part.warp, ByDepth<kColumns>{shared.scaled}, 0, 0,
                  kDeltaRows);
      add_product(dstate, ByDepth<kDeltaDim>{tiles.w}, 16 * part.warp, ByDepth<kColumns>{shared.plain}, 0, 0,
                  kDeltaRows);
      publish<kColumns>(dstate, shared.state);
    }
    write_rows<kDeltaRows, kColumns, kThreads>(buffers.du + at * kDeltaDim + place.first_column,
                                               int64_t{in.value_heads} * kDeltaDim, shared.plain, place.valid(chunk));
  }
}

/// Calls f with the columns per CTA and the chunks in its shared memory: if documents and heads alone do not fill the
/// device, narrow CTAs that prefetch as many chunks as fit.
template <class F>
void with_scan(const Context& context, const DeltaRuleArgs& args, const F& f) {
  constexpr int64_t kEnough = 128;
  const size_t memory = kernel_tiers(context).shared_memory;
  const std::integral_constant<int, 32> narrow;
  const bool fills = args.sequences.num_documents * args.heads.num_value_heads >= kEnough;
  if (fills && sizeof(ScanShared<64, 1>) <= memory) {  // 106 KB
    f(std::integral_constant<int, 64>{}, std::integral_constant<int, 1>{});
  } else if (!fills && sizeof(ScanShared<32, 3>) <= memory) {  // 218 KB
    f(narrow, std::integral_constant<int, 3>{});
  } else if (!fills && sizeof(ScanShared<32, 2>) <= memory) {  // 152 KB
    f(narrow, std::integral_constant<int, 2>{});
  } else {
    f(narrow, std::integral_constant<int, 1>{});  // 86 KB
  }
}

unsigned scan_blocks(const DeltaRuleArgs& args, int columns) {
  return blocks_for(args.sequences.num_documents * args.heads.num_value_heads * kDeltaDim, columns);
}

}  // namespace

void scan_delta_chunks(const Context& context, const DeltaRuleArgs& args, const DeltaScratch& scratch) {
  with_scan(context, args, [&](auto columns, auto stages) {
    constexpr size_t kShared = sizeof(ScanShared<columns, stages>);
    const auto kernel =
        scratch.inverse.defined() ? &scan_kernel<columns, stages, true> : &scan_kernel<columns, stages, false>;
    allow_shared_memory(kernel, kShared);
    kernel<<<scan_blocks(args, columns), kThreads, kShared, stream_of(context)>>>(
        DeltaInputs<Half>(args), DeltaBuffers(scratch), elements<Half>(args.out));
  });
  check_launch("running chunks of the delta rule");
}

void scan_delta_chunks_back(const Context& context, const DeltaRuleGradArgs& args, const DeltaScratch& scratch) {
  with_scan(context, args.forward, [&](auto columns, auto stages) {
    constexpr size_t kShared = sizeof(ScanShared<columns, stages>);
    const auto kernel = &scan_back_kernel<columns, stages>;
    allow_shared_memory(kernel, kShared);
    kernel<<<scan_blocks(args.forward, columns), kThreads, kShared, stream_of(context)>>>(
        DeltaInputs<Half>(args.forward), DeltaBuffers(scratch), elements<Half>(args.dout));
  });
  check_launch("running chunks of the delta rule backward");
}

}  // namespace hone::cuda
