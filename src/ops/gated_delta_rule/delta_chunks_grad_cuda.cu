// The gradients of the inputs, for all chunks at once, after the scans have computed the states on both sides of each
// chunk and their gradients. A CTA has a chunk and a key head, and visits the value heads that share it.
//
// Its tiles take all of a multiprocessor's shared memory (200 KB), so it has 16 warps to hide latencies: four by rows,
// four by columns. With less than 200 KB a CTA reads values, states and the gradient of the output from device memory,
// with bitwise equal results. Registers (ptxas 13.0): 128 of 128; 128 bytes of stack if it reads device memory
// (bench/results/sm80-registers-2026-11-26.txt). Speeds: delta_chunks_cuda.h.
#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "kernels/cuda/tiers.h"
#include "ops/gated_delta_rule/delta_chunks_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kHighWarps = 4, kWideWarps = 4, kThreads = 32 * kHighWarps * kWideWarps;
/// Columns of a warp, in rows and in matrices [tokens, tokens].
constexpr int kPart = kDeltaDim / kWideWarps, kPairPart = kDeltaRows / kWideWarps;
using RowSums = Sums<1, kPart / 8>;
using PairSums = Sums<1, kPairPart / 8>;
constexpr int kWide = padded(kDeltaDim), kNarrow = padded(kDeltaRows);

/// A sum over each row, to which each warp across contributes a part.
using RowParts = float[kWideWarps][kDeltaRows];

/// Operands that stay in device memory unless kAll.
template <bool kAll>
struct InputTiles {
  Half v[kDeltaRows * kWide], dout[kDeltaRows * kWide];
  Half state[kDeltaDim * kWide], dstate[kDeltaDim * kWide];
};
template <>
struct InputTiles<false> {};

template <bool kAll>
struct GradShared : InputTiles<kAll> {
  Half q[kDeltaRows * kWide], k[kDeltaRows * kWide];  // normalised, q scaled
  Half fresh[kDeltaRows * kWide];
  Half dr[kDeltaRows * kWide];           // minus the gradient of V, later of R
  Half pairs[kDeltaRows * kNarrow];      // T, later the scores' part of dq and dk
  Half key_pairs[kDeltaRows * kNarrow];  // A's part of dk
  float q_inverse[kDeltaRows], k_inverse[kDeltaRows];
  float beta[kDeltaRows], g[kDeltaRows], grown[kDeltaRows], to_end[kDeltaRows];
  RowParts by_value, by_a, by_row, by_query, by_key, by_update;  // see combine()
  float by_column[kHighWarps][kDeltaRows];
  float kept[kThreads / 32];
};

static_assert(sizeof(GradShared<false>) <= kLeastDeltaShared);

/// Normalises rows in place, eight threads per row, and stores 1 / norm of the valid ones.
__device__ void normalise_rows(Half* rows, float* inverse, int valid, float length) {
  constexpr int kLanes = kThreads / kDeltaRows, kPairs = kDeltaDim / (2 * kLanes);
  static_assert(kLanes == 8);
  const int row = static_cast<int>(threadIdx.x) / kLanes, part = static_cast<int>(threadIdx.x) % kLanes;
  Half* own = rows + row * kWide + part * 2;
  float2 values[kPairs];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    values[i] = load_pair(own + 2 * kLanes * i);
    squares = fmaf(values[i].x, values[i].x, fmaf(values[i].y, values[i].y, squares));
  }
  squares = row_lanes_sum(squares);
  squares += __shfl_xor_sync(0xffffffffu, squares, 4);
  const float scale = row < valid ? rsqrtf(squares + kDeltaNormEps) : 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    store_pair(own + 2 * kLanes * i, values[i].x * scale * length, values[i].y * scale * length);
  }
  if (part == 0) inverse[row] = scale;
}

template <bool kAll>
class ChunkGrad {
 public:
  __device__ ChunkGrad(const DeltaInputs<Half>& in, const DeltaBuffers& buffers, const DeltaGradients<Half>& out,
                       GradShared<kAll>& shared, const DocumentTile& tile, int key_head)
      : in_(in),
        buffers_(buffers),
        out_(out),
        s_(shared),
        begin_(tile.begin),
        token_(tile.begin + tile.first),
        chunk_(tile.first / kDeltaRows),
        key_head_(key_head),
        valid_(static_cast<int>(min(tile.length - tile.first, int64_t{kDeltaRows}))),
        before_(tile.first > 0),
        behind_(tile.first + kDeltaRows < tile.length) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    high_ = warp % kHighWarps, wide_ = warp / kHighWarps, row_ = 16 * high_;
  }

  __device__ void run() {
    copy_rows<kDeltaRows, kDeltaDim, kThreads>(s_.q, in_.qkv + in_.query(token_, key_head_), in_.width, valid_);
    copy_rows<kDeltaRows, kDeltaDim, kThreads>(s_.k, in_.qkv + in_.key(token_, key_head_), in_.width, valid_);
    for (int i = 0; i < in_.group(); ++i) {
      const int head = key_head_ * in_.group() + i;
      copy_head(head);
      load_gates(head);
      cp_async_wait<1>();
      __syncthreads();
      sum_gates(s_.g);
      if (i == 0) {
        normalise_rows(s_.q, s_.q_inverse, valid_, length());
        normalise_rows(s_.k, s_.k_inverse, valid_, 1.0f);
      }
      __syncthreads();
      differentiate_values(head);
      differentiate_scores(head);
      differentiate_states(head);
      combine(head);
    }
    store_keys(dq_, s_.q, s_.q_inverse, length(), in_.query(token_, key_head_), s_.by_query);
    store_keys(dk_, s_.k, s_.k_inverse, 1.0f, in_.key(token_, key_head_), s_.by_key);
  }

 private:
  __device__ static float length() { return rsqrtf(static_cast<float>(kDeltaDim)); }

  __device__ void copy_head(int head) {
    const int64_t at = token_ * in_.value_heads + head, stride = in_.value_heads;
    const auto rows = [&](Half* to, const Half* from) {
      copy_rows<kDeltaRows, kDeltaDim, kThreads>(to, from + at * kDeltaDim, stride * kDeltaDim, valid_);
    };
    copy_rows<kDeltaRows, kDeltaRows, kThreads>(s_.pairs, buffers_.inverse + at * kDeltaRows, stride * kDeltaRows,
                                                valid_);
    rows(s_.dr, buffers_.du);
    rows(s_.fresh, buffers_.u);
    if constexpr (kAll) {
      rows(s_.dout, out_.dout);
      copy_rows<kDeltaRows, kDeltaDim, kThreads>(s_.v, in_.qkv + in_.value(token_, head), in_.width, valid_);
    }
    cp_async_commit();
    if constexpr (kAll) copy_states(head);
    cp_async_commit();
  }

  __device__ void copy_states(int head) {
    const auto state = [&](Half* to, const Half* from, int64_t chunk) {
      copy_rows<kDeltaDim, kDeltaDim, kThreads>(to, from + delta_slot(begin_, chunk, in_.value_heads, head), kDeltaDim,
                                                kDeltaDim);
    };
    if (before_) state(s_.state, buffers_.states, chunk_ - 1);
    if (behind_) state(s_.dstate, buffers_.dstates, chunk_);
  }

  __device__ float2 value_pair(int head, int row, int column) const {
    if constexpr (kAll) {
      return load_pair(s_.v + row * kWide + column);
    } else {
      return row < valid_ ? load_pair(in_.qkv + in_.value(token_ + row, head) + column) : float2{0.0f, 0.0f};
    }
  }
  /// Operands by row: the gradient of the output, the state before the chunk, and the gradient of the state after it.
  __device__ auto dout(int head) const {
    if constexpr (kAll) {
      return ByRow<kDeltaDim>{s_.dout};
    } else {
      return RowsOfMemory{out_.dout + in_.output(token_, head), int64_t{in_.value_heads} * kDeltaDim, valid_};
    }
  }
  __device__ auto state(int head) const {
    if constexpr (kAll) {
      return ByRow<kDeltaDim>{s_.state};
    } else {
      return RowsOfMemory{buffers_.states + delta_slot(begin_, chunk_ - 1, in_.value_heads, head), kDeltaDim,
                          kDeltaDim};
    }
  }
  __device__ auto dstate(int head) const {
    if constexpr (kAll) {
      return ByRow<kDeltaDim>{s_.dstate};
    } else {
      return RowsOfMemory{buffers_.dstates + delta_slot(begin_, chunk_, in_.value_heads, head), kDeltaDim, kDeltaDim};
    }
  }

  __device__ void load_gates(int head) {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kDeltaRows) return;
    DeltaGate gate{};
    if (row < valid_) gate = in_.gate(token_ + row, head);
    s_.beta[row] = gate.beta;
    s_.g[row] = gate.g;
  }

  /// Backward of R: dv and its part of dβ. dr becomes minus the gradient of R.
  __device__ void differentiate_values(int head) {
    const int row = static_cast<int>(threadIdx.x), column = kPart * wide_;
    if (row < kDeltaRows) {
      s_.grown[row] = __expf(s_.g[row]);
      s_.to_end[row] = __expf(s_.g[kDeltaRows - 1] - s_.g[row]);
    }
    RowSums sums = {};
    for (int depth = row_; depth < kDeltaRows; depth += 16) {
      add_product(sums, ByDepth<kDeltaRows>{s_.pairs}, row_, ByDepth<kDeltaDim>{s_.dr}, column, depth, depth + 16);
    }
    __syncthreads();
    float along[2] = {};
    for_pairs(sums, [&](int r, int c, float first, float second) {
      const int at_row = row_ + r, at = at_row * kWide + column + c;
      store_pair(s_.dr + at, first, second);
      const float2 v = value_pair(head, at_row, column + c);
      add_along(along, r, -(first * v.x + second * v.y));
      if (out_.dqkv == nullptr || at_row >= valid_) return;
      const float scale = -s_.beta[at_row];
      store_gradient(in_.value(token_ + at_row, head) + column + c, scale * first, scale * second);
    });
    store_parts(s_.by_value, along);
    __syncthreads();
  }

  /// Backward of P and A to queries, keys, β and G.
  __device__ void differentiate_scores(int head) {
    const int column = kPairPart * wide_;
    const ByRow<kDeltaDim> q{s_.q}, k{s_.k}, fresh{s_.fresh};
    PairSums da = {}, dp = {}, qk = {}, kk = {};
    add_product(da, ByRow<kDeltaDim>{s_.dr}, row_, fresh, column, 0, kDeltaDim);
    add_product(dp, dout(head), row_, fresh, column, 0, kDeltaDim);
    add_product(qk, q, row_, k, column, 0, kDeltaDim);
    add_product(kk, k, row_, k, column, 0, kDeltaDim);
    float by_a[2] = {}, by_row[2] = {};
#pragma unroll
    for (int n = 0; n < kPairPart / 8; ++n) {
      float by_column[2] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = row_ + sum_row(i), other = column + 8 * n + sum_column() + i % 2;
        const float decay = other <= row ? __expf(s_.g[row] - s_.g[other]) : 0.0f;
        const float below = other < row ? da[0][n][i] : 0.0f;
        const float to_beta = below * kk[0][n][i] * decay;
        const float change = dp[0][n][i] * qk[0][n][i] * decay + s_.beta[row] * to_beta;
        by_a[i / 2] += to_beta;
        by_row[i / 2] += change;
        by_column[i % 2] += change;
        dp[0][n][i] *= decay;
        da[0][n][i] = below * s_.beta[row] * decay;
      }
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float sum = column_lanes_sum(by_column[x]);
        if (threadIdx.x % 32 < 4) s_.by_column[high_][column + 8 * n + sum_column() + x] = sum;
      }
    }
    store_parts(s_.by_a, by_a);
    store_parts(s_.by_row, by_row);
    const auto store = [&](PairSums& sums, Half* to) {
      for_pairs(sums, [&](int r, int c, float first, float second) {
        store_pair(to + (row_ + r) * kNarrow + column + c, first, second);
      });
    };
    store(dp, s_.pairs);
    store(da, s_.key_pairs);
    __syncthreads();
    const int part = kPart * wide_;
    const ByDepth<kDeltaDim> queries{s_.q}, keys{s_.k};
    for (int depth = 0; depth <= row_; depth += 16) {
      add_product(dq_, ByRow<kDeltaRows>{s_.pairs}, row_, keys, part, depth, depth + 16);
      add_product(dk_, ByRow<kDeltaRows>{s_.key_pairs}, row_, keys, part, depth, depth + 16);
    }
    for (int depth = row_; depth < kDeltaRows; depth += 16) {
      add_product(dk_, ByDepth<kDeltaRows>{s_.pairs}, row_, queries, part, depth, depth + 16);
      add_product(dk_, ByDepth<kDeltaRows>{s_.key_pairs}, row_, keys, part, depth, depth + 16);
    }
  }

  /// Backward of the chunk's reads of the state before it and its additions to the state after it.
  __device__ void differentiate_states(int head) {
    cp_async_wait<0>();
    __syncthreads();
    if (before_) {
      add_through(dout(head), state(head), s_.grown, nullptr, dq_, s_.q, s_.by_query);
      add_through(ByRow<kDeltaDim>{s_.dr}, state(head), s_.grown, s_.beta, dk_, s_.k, s_.by_key);
    }
    if (!behind_) return;
    add_through(ByRow<kDeltaDim>{s_.fresh}, dstate(head), s_.to_end, nullptr, dk_, s_.k, s_.by_update);
    if (!before_) return;
    float kept = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < kDeltaDim * kDeltaDim / 2; i += kThreads) {
      const int row = i / (kDeltaDim / 2), column = i % (kDeltaDim / 2) * 2;
      const float2 before = element_pair(state(head), row, column), gradient = element_pair(dstate(head), row, column);
      kept = fmaf(before.x, gradient.x, fmaf(before.y, gradient.y, kept));
    }
    kept = warp_sum(kept);
    if (threadIdx.x % 32 == 0) s_.kept[threadIdx.x / 32] = kept;
  }

  __device__ static float2 element_pair(const ByRow<kDeltaDim>& of, int row, int column) {
    return load_pair(of.data + row * kWide + column);
  }
  __device__ static float2 element_pair(const RowsOfMemory& of, int row, int column) {
    return unpack_bf16(of.pair(row, column));
  }

  /// x = factor · rows matrixᵀ; gradient += weight · x (weight null: 1), and parts of x · unit, row by row.
  template <class Rows, class Matrix>
  __device__ void add_through(const Rows& rows, const Matrix& matrix, const float* factor, const float* weight,
                              RowSums& gradient, const Half* unit, RowParts& parts) {
    const int column = kPart * wide_;
    RowSums sums = {};
    add_product(sums, rows, row_, matrix, column, 0, kDeltaDim);
    float along[2] = {};
#pragma unroll
    for (int n = 0; n < kPart / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int row = row_ + sum_row(i);
        const float first = factor[row] * sums[0][n][i], second = factor[row] * sums[0][n][i + 1];
        const float2 by = load_pair(unit + row * kWide + column + 8 * n + sum_column());
        along[i / 2] += first * by.x + second * by.y;
        const float scale = weight == nullptr ? 1.0f : weight[row];
        gradient[0][n][i] = fmaf(scale, first, gradient[0][n][i]);
        gradient[0][n][i + 1] = fmaf(scale, second, gradient[0][n][i + 1]);
      }
    }
    store_parts(parts, along);
  }

  /// Computes the gates' gradients from their parts, with the first warp.
  __device__ void combine(int head) {
    __syncthreads();
    if (threadIdx.x < 32) {
      float dbeta[2], dg[2], updates = 0.0f;
      const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int row = 2 * lane + x;
        dbeta[x] = all_parts(s_.by_value, row) + all_parts(s_.by_a, row);
        dg[x] = all_parts(s_.by_row, row);
#pragma unroll
        for (const auto& part : s_.by_column) dg[x] -= part[row];
        if (before_) {
          const float read = all_parts(s_.by_key, row);
          dbeta[x] += read;
          dg[x] += all_parts(s_.by_query, row) + s_.beta[row] * read;
        }
        if (behind_) {
          const float update = all_parts(s_.by_update, row);
          dg[x] -= update;
          updates += update;
        }
      }
      updates = warp_sum(updates);
      if (lane == 31) dg[1] += updates + (before_ && behind_ ? s_.grown[kDeltaRows - 1] * kept_sum() : 0.0f);
      store_gates(head, dbeta, dg);
    }
    __syncthreads();
  }

  __device__ static float all_parts(const RowParts& parts, int row) {
    float sum = 0.0f;
#pragma unroll
    for (const auto& part : parts) sum += part[row];
    return sum;
  }

  __device__ float kept_sum() const {
    float sum = 0.0f;
#pragma unroll
    for (const float part : s_.kept) sum += part;
    return sum;
  }

  /// Called by one warp, two tokens per lane.
  __device__ void store_gates(int head, const float (&dbeta)[2], const float (&dg_sum)[2]) {
    const int lane = static_cast<int>(threadIdx.x);
    float sum = dg_sum[0] + dg_sum[1];  // sum over this lane's and all later tokens
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float other = __shfl_down_sync(0xffffffffu, sum, offset);
      if (lane + offset < 32) sum += other;
    }
    const float dg[2] = {sum, sum - dg_sum[0]};
    float da_log = 0.0f, ddt_bias = 0.0f;
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int row = 2 * lane + x;
      if (row >= valid_) continue;
      const DeltaGate gate = in_.gate(token_ + row, head);
      const int64_t at = (token_ + row) * in_.value_heads + head;
      const float da = dg[x] * gate.dg_da;
      out_.store(out_.da, at, da, out_.add_a);
      out_.store(out_.db, at, dbeta[x] * gate.beta * (1.0f - gate.beta), out_.add_b);
      da_log += dg[x] * gate.g;
      ddt_bias += da;
    }
    da_log = warp_sum(da_log);
    ddt_bias = warp_sum(ddt_bias);
    const int64_t at = int64_t{blockIdx.x} * in_.value_heads + head;
    if (lane == 0 && out_.a_log != nullptr) out_.a_log[at] = da_log;
    if (lane == 0 && out_.dt_bias != nullptr) out_.dt_bias[at] = ddt_bias;
  }

  /// Backward of the norms; `unit` are their results, of this length.
  __device__ void store_keys(RowSums& gradient, const Half* unit, const float* inverse, float unit_length,
                             int64_t place, RowParts& parts) {
    const int column = kPart * wide_;
    float along[2] = {};
    for_pairs(gradient, [&](int r, int c, float first, float second) {
      const float2 by = load_pair(unit + (row_ + r) * kWide + column + c);
      add_along(along, r, first * by.x + second * by.y);
    });
    store_parts(parts, along);
    __syncthreads();
    if (out_.dqkv == nullptr) return;
    for_pairs(gradient, [&](int r, int c, float first, float second) {
      const int row = row_ + r;
      if (row >= valid_) return;
      const float2 by = load_pair(unit + row * kWide + column + c);
      const float projection = all_parts(parts, row) / (unit_length * unit_length), scale = inverse[row] * unit_length;
      store_gradient(place + row * in_.width + column + c, scale * (first - projection * by.x),
                     scale * (second - projection * by.y));
    });
  }

  __device__ void store_gradient(int64_t at, float first, float second) const {
    if (out_.add_qkv) {
      const float2 there = load_pair(out_.dqkv + at);
      first += there.x, second += there.y;
    }
    store_pair(out_.dqkv + at, first, second);
  }

  /// Selects registers by conditionals: an index would need local memory.
  __device__ static void add_along(float (&along)[2], int row, float value) {
    along[0] += row < 8 ? value : 0.0f;
    along[1] += row < 8 ? 0.0f : value;
  }

  /// This lane's rows are row_ + lane / 4, and the one 8 below.
  __device__ void store_parts(RowParts& parts, const float (&along)[2]) const {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const float sum = row_lanes_sum(along[x]);
      if (threadIdx.x % 4 == 0) parts[wide_][row_ + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * x] = sum;
    }
  }

  const DeltaInputs<Half>& in_;
  const DeltaBuffers& buffers_;
  const DeltaGradients<Half>& out_;
  GradShared<kAll>& s_;
  int64_t begin_, token_, chunk_;
  int key_head_, valid_;
  bool before_, behind_;
  int high_, wide_, row_;
  RowSums dq_ = {}, dk_ = {};
};

template <bool kAll>
__global__ void __launch_bounds__(kThreads, 1)
    chunk_grad_kernel(const DeltaInputs<Half> in, const DeltaBuffers buffers, const DeltaGradients<Half> out) {
  extern __shared__ uint4 memory[];
  const DocumentTile tile = find_document_tile(in.cu_seqlens, in.documents, static_cast<int>(blockIdx.x));
  const int key_head = static_cast<int>(blockIdx.y);
  if (tile.first < tile.length) {
    ChunkGrad<kAll>(in, buffers, out, *reinterpret_cast<GradShared<kAll>*>(memory), tile, key_head).run();
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < in.group(); i += kThreads) {
    const int64_t at = int64_t{blockIdx.x} * in.value_heads + key_head * in.group() + i;
    if (out.a_log != nullptr) out.a_log[at] = 0.0f;
    if (out.dt_bias != nullptr) out.dt_bias[at] = 0.0f;
  }
}

}  // namespace

void delta_chunks_grad(const Context& context, const DeltaRuleGradArgs& args, const DeltaScratch& scratch) {
  const DeltaHeads& heads = args.forward.heads;
  const unsigned tiles = tiles_of_documents(args.forward.qkv.shape[0], args.forward.sequences.num_documents);
  ArenaScope memory(context.scratch());
  Tensor a_log_parts, dt_bias_parts;
  if (args.da_log.wanted()) a_log_parts = memory.take({tiles, heads.num_value_heads}, DType::kF32);
  if (args.ddt_bias.wanted()) dt_bias_parts = memory.take({tiles, heads.num_value_heads}, DType::kF32);
  if (!context.dry() && tiles > 0) {
    const bool all = sizeof(GradShared<true>) <= kernel_tiers(context).shared_memory;
    const size_t shared = all ? sizeof(GradShared<true>) : sizeof(GradShared<false>);
    const auto kernel = all ? &chunk_grad_kernel<true> : &chunk_grad_kernel<false>;
    allow_shared_memory(kernel, shared);
    const dim3 grid(tiles, static_cast<unsigned>(heads.num_key_heads));
    kernel<<<grid, kThreads, shared, stream_of(context)>>>(DeltaInputs<Half>(args.forward), DeltaBuffers(scratch),
                                                           DeltaGradients<Half>(args, a_log_parts, dt_bias_parts));
    check_launch("differentiating chunks of the delta rule");
  }
  if (args.da_log.wanted()) sum_chunks(context, a_log_parts, {args.da_log});
  if (args.ddt_bias.wanted()) sum_chunks(context, dt_bias_parts, {args.ddt_bias});
}

}  // namespace hone::cuda
