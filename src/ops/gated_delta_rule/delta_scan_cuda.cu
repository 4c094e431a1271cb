// The ways of a state through its document, forward and backward, chunk after chunk. A block has some of the state's
// columns, which do not depend on each other, in its registers: four warps with 32 rows each.
#include "ops/gated_delta_rule/delta_chunks_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 128, kWide = padded(kDeltaDim), kNarrow = padded(kDeltaRows);

/// What a chunk reads.
template <int kColumns>
struct ChunkTiles {
  Half w[kDeltaRows * kWide], k[kDeltaRows * kWide], q[kDeltaRows * kWide];
  Half p[kDeltaRows * kNarrow];
  Half rows[kDeltaRows * padded(kColumns)];  // of U or dout
  DeltaScales scales[kDeltaRows];
};

template <int kColumns, int kStages>
struct ScanShared {
  ChunkTiles<kColumns> tiles[kStages];
  Half state[kDeltaDim * padded(kColumns)];
  Half plain[kDeltaRows * padded(kColumns)], scaled[kDeltaRows * padded(kColumns)];
};

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
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(&tiles.scales[row])),
                 "l"(buffers.scales + at + (row < valid ? row * stride : 0)), "r"(row < valid ? 16 : 0)
                 : "memory");
  }
  commit_copies();
}

/// The state as bfloat16 to shared memory.
template <int kColumns>
__device__ void publish(Sums<2, kColumns / 8>& state, Half* to) {
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 32;
  for_pairs(state, [&](int row, int column, float first, float second) {
    store_pair(to + (first_row + row) * padded(kColumns) + column, first, second);
  });
}

template <int kColumns>
__device__ void decay(Sums<2, kColumns / 8>& state, float factor) {
#pragma unroll
  for (auto& high : state) {
#pragma unroll
    for (auto& wide : high) {
#pragma unroll
      for (float& value : wide) value *= factor;
    }
  }
}

template <int kColumns, int kStages, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    scan_kernel(const DeltaInputs<Half> in, const DeltaBuffers buffers, Half* out) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<ScanShared<kColumns, kStages>*>(memory);
  constexpr int kTiles = kColumns / 8;
  const ScanPlace place(in, kColumns);
  const auto copy = [&](int chunk) {
    const bool before = chunk > 0, behind = chunk + 1 < place.chunks;
    copy_chunk(shared.tiles[chunk % kStages], in, buffers, place, chunk, buffers.u,
               {.w = before, .k = behind, .q = before && !kBackward, .p = !kBackward});
  };
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16;
  Sums<2, kTiles> state = {};
  if (place.chunks > 0) copy(0);
  for (int chunk = 0; chunk < place.chunks; ++chunk) {
    const ChunkTiles<kColumns>& tiles = shared.tiles[chunk % kStages];
    const int64_t at = place.token(chunk) * in.value_heads + place.head;
    const int valid = place.valid(chunk);
    if (kStages > 1 && chunk + 1 < place.chunks) {
      copy(chunk + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    if (chunk > 0) publish<kColumns>(state, shared.state);
    __syncthreads();

    const ByDepth<kColumns> before{shared.state};
    Sums<1, kTiles> known = {}, read = {};
    if (chunk > 0) {
      add_product(known, ByRow<kDeltaDim>{tiles.w}, first_row, before, 0, 0, kDeltaDim);
      if constexpr (!kBackward) {
        add_product(read, ByRow<kDeltaDim>{tiles.q}, first_row, before, 0, 0, kDeltaDim);
      } else {
        write_rows<kDeltaDim, kColumns, kThreads>(
            buffers.states + delta_slot(place.begin, chunk - 1, in.value_heads, place.head) + place.first_column,
            kDeltaDim, shared.state, kDeltaDim);
      }
    }
    for_pairs(known, [&](int row, int column, float& first, float& second) {
      const int at_row = (first_row + row) * padded(kColumns) + column;
      const float2 u = load_pair(tiles.rows + at_row);
      const float scale = tiles.scales[first_row + row].key;
      store_pair(shared.plain + at_row, u.x - first, u.y - second);
      store_pair(shared.scaled + at_row, scale * (u.x - first), scale * (u.y - second));
    });
    __syncthreads();

    if constexpr (kBackward) {
      write_rows<kDeltaRows, kColumns, kThreads>(buffers.u + at * kDeltaDim + place.first_column,
                                                 int64_t{in.value_heads} * kDeltaDim, shared.plain, valid);
    } else {
      for_pairs(read, [&](int row, int, float& first, float& second) {
        const float scale = tiles.scales[first_row + row].query;
        first *= scale, second *= scale;
      });
      for (int depth = 0; depth <= first_row; depth += 16) {
        add_product(read, ByRow<kDeltaRows>{tiles.p}, first_row, ByDepth<kColumns>{shared.plain}, 0, depth, depth + 16);
      }
      for_pairs(read, [&](int row, int column, float first, float second) {
        if (first_row + row >= valid) return;
        store_pair(out + (at + (first_row + row) * int64_t{in.value_heads}) * kDeltaDim + place.first_column + column,
                   first, second);
      });
    }
    if (chunk + 1 < place.chunks) {
      decay<kColumns>(state, tiles.scales[kDeltaRows - 1].grown);
      add_product(state, ByDepth<kDeltaDim>{tiles.k}, 2 * first_row, ByDepth<kColumns>{shared.scaled}, 0, 0,
                  kDeltaRows);
      if (kStages == 1) {
        __syncthreads();
        copy(chunk + 1);
      }
    }
    if (kStages > 1) __syncthreads();
  }
}

template <int kColumns, int kStages>
__global__ void __launch_bounds__(kThreads)
    scan_back_kernel(const DeltaInputs<Half> in, const DeltaBuffers buffers, const Half* dout) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<ScanShared<kColumns, kStages>*>(memory);
  constexpr int kTiles = kColumns / 8;
  const ScanPlace place(in, kColumns);
  const auto copy = [&](int chunk) {
    const bool before = chunk > 0, behind = chunk + 1 < place.chunks;
    copy_chunk(shared.tiles[chunk % kStages], in, buffers, place, chunk, dout,
               {.w = before, .k = behind, .q = before, .p = true});
  };
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16;
  Sums<2, kTiles> dstate = {};
  if (place.chunks > 0) copy(place.chunks - 1);
  for (int chunk = place.chunks - 1; chunk >= 0; --chunk) {
    const ChunkTiles<kColumns>& tiles = shared.tiles[chunk % kStages];
    const int64_t at = place.token(chunk) * in.value_heads + place.head;
    const bool behind = chunk + 1 < place.chunks;
    if (kStages > 1 && chunk > 0) {
      copy(chunk - 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    if (behind) publish<kColumns>(dstate, shared.state);
    __syncthreads();

    Sums<1, kTiles> dfresh = {};
    if (behind) {
      add_product(dfresh, ByRow<kDeltaDim>{tiles.k}, first_row, ByDepth<kColumns>{shared.state}, 0, 0, kDeltaDim);
      for_pairs(dfresh, [&](int row, int, float& first, float& second) {
        const float scale = tiles.scales[first_row + row].key;
        first *= scale, second *= scale;
      });
      write_rows<kDeltaDim, kColumns, kThreads>(
          buffers.dstates + delta_slot(place.begin, chunk, in.value_heads, place.head) + place.first_column, kDeltaDim,
          shared.state, kDeltaDim);
    }
    for (int depth = first_row; depth < kDeltaRows; depth += 16) {
      add_product(dfresh, ByDepth<kDeltaRows>{tiles.p}, first_row, ByDepth<kColumns>{tiles.rows}, 0, depth, depth + 16);
    }
    for_pairs(dfresh, [&](int row, int column, float first, float second) {
      const int at_row = (first_row + row) * padded(kColumns) + column;
      store_pair(shared.plain + at_row, -first, -second);
      const float2 gradient = load_pair(tiles.rows + at_row);
      const float scale = tiles.scales[first_row + row].query;
      store_pair(shared.scaled + at_row, scale * gradient.x, scale * gradient.y);
    });
    __syncthreads();
    write_rows<kDeltaRows, kColumns, kThreads>(buffers.du + at * kDeltaDim + place.first_column,
                                               int64_t{in.value_heads} * kDeltaDim, shared.plain, place.valid(chunk));
    if (chunk > 0) {
      decay<kColumns>(dstate, tiles.scales[kDeltaRows - 1].grown);
      add_product(dstate, ByDepth<kDeltaDim>{tiles.q}, 2 * first_row, ByDepth<kColumns>{shared.scaled}, 0, 0,
                  kDeltaRows);
      add_product(dstate, ByDepth<kDeltaDim>{tiles.w}, 2 * first_row, ByDepth<kColumns>{shared.plain}, 0, 0,
                  kDeltaRows);
      if (kStages == 1) {
        __syncthreads();
        copy(chunk - 1);
      }
    }
    if (kStages > 1) __syncthreads();
  }
}

/// Calls f with the columns of a block and the chunks it holds at once: where documents and heads alone do not fill the
/// device, narrow blocks that copy the next chunk beside the work on one.
template <class F>
void with_scan(const DeltaRuleArgs& args, const F& f) {
  constexpr int64_t kEnough = 128;
  if (args.sequences.num_documents * args.heads.num_value_heads < kEnough) {
    f(std::integral_constant<int, 32>{}, std::integral_constant<int, 2>{});
  } else {
    f(std::integral_constant<int, 64>{}, std::integral_constant<int, 1>{});
  }
}

unsigned scan_blocks(const DeltaRuleArgs& args, int columns) {
  return blocks_for(args.sequences.num_documents * args.heads.num_value_heads * kDeltaDim, columns);
}

}  // namespace

void scan_delta_chunks(const Context& context, const DeltaRuleArgs& args, const DeltaScratch& scratch) {
  with_scan(args, [&](auto columns, auto stages) {
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
  with_scan(args.forward, [&](auto columns, auto stages) {
    constexpr size_t kShared = sizeof(ScanShared<columns, stages>);
    const auto kernel = &scan_back_kernel<columns, stages>;
    allow_shared_memory(kernel, kShared);
    kernel<<<scan_blocks(args.forward, columns), kThreads, kShared, stream_of(context)>>>(
        DeltaInputs<Half>(args.forward), DeltaBuffers(scratch), elements<Half>(args.dout));
  });
  check_launch("running chunks of the delta rule backward");
}

}  // namespace hone::cuda
