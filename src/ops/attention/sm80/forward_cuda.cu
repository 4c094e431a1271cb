// The forward pass of attention on tier sm80: a CTA owns 128 queries of one head and visits the keys that they attend
// to, those of the diagonal first (Dao, "FlashAttention-2", arXiv:2307.08691). A warp has 32 queries, the most whose
// accumulators fit (16 for heads of 256), since fragments of keys and values are shared by all of its rows. Two CTAs
// share a multiprocessor if shared memory allows: one multiplies while the other is in softmax.
//
// Registers (ptxas 13.0): up to 255 of 255, of which heads of 128 with 64 keys per step have 128 accumulators of out
// and 64 scores; at most 16 bytes are spilled on any architecture. Queries are read from shared memory again in each
// step, except for heads of 64. Ceiling on an H200 for heads of 128: a warp's step reads 40 KB of fragments, 320 clocks
// of shared memory against some 410 of MMAs.
//
// Measured on one H200 limited to this tier, 2026-11-23, causal, model TFLOP/s: 4 x 4096, 32/4 heads of 128: 328. With
// one address of copies per thread, on an H100, 2026-11-26: 359 (347 with the 163 KB of an A100, 303 with the 99 KB of
// Ada; FlashAttention-2 in torch 317 on the same GPU); heads of 64: 295 (245); 192/128: 372; 256: 293 (292). Raw:
// bench/results/sm80-kernels-2026-11-23.txt, h100-attention-sm80-2026-11-26.txt. One H200, 2026-11-29, 4 x 4096,
// 128/128 heads of 192 and 128, with two key-value heads at a time (attention_order.h): 369 -> 373 (four: 375). Raw:
// bench/results/h200-attention-order-2026-11-29.txt.
#include "kernels/cuda/tiers.h"
#include "ops/attention/sm80/attention_cuda.h"

namespace hone::cuda::sm80 {

namespace {

/// Heads of up to kDimOf elements, values of up to kValueDimOf; kKeysOf keys per step, kStagesOf steps in shared
/// memory: with two, one is loaded while the other is multiplied; with one, values are loaded during the scores, and
/// the next keys during the rest.
template <int kDimOf, int kValueDimOf, int kKeysOf, int kStagesOf, int kCtasOf>
struct ForwardShape {
  static constexpr int kDim = kDimOf, kValueDim = kValueDimOf, kKeys = kKeysOf, kStages = kStagesOf;
  static constexpr int kCtas = kCtasOf;  // CTAs per multiprocessor, limited by registers
  static constexpr int kRowTiles = kValueDim > 128 ? 1 : 2, kWarpRows = 16 * kRowTiles;
  static constexpr int kThreads = kAttentionRows / kWarpRows * 32;
  static constexpr bool kQueriesInRegisters = kDim <= 64;
  static constexpr bool kSliced = kDim > kWideSlice;  // the grid's y-th CTA of an item has the y-th kValueDim values
  using Queries = SharedLines<kAttentionRows, kDim>;
  using Keys = SharedLines<kKeys, kDim>;
  using Values = SharedLines<kKeys, kValueDim>;
  static constexpr int kStageBytes = Keys::kBytes + Values::kBytes;
  static constexpr int kBytes = Queries::kBytes + kStages * kStageBytes;
};

struct ForwardArgs {
  TileOrder order;
  const __nv_bfloat16 *q, *k, *v;
  __nv_bfloat16* out;
  float* lse;  // [Hq, T]
  int64_t tokens;
  int num_heads, num_kv_heads, head_dim, v_head_dim;
  float scale;
  int window;  // 0: none
};

/// The online softmax of a thread's rows: accumulator_row() and 8 below of each row tile.
template <int kRowTiles>
struct Softmax {
  float scale_log2;
  float largest[kRowTiles][2], sum[kRowTiles][2];  ///< running maxima; this thread's probabilities relative to them

  __device__ explicit Softmax(float scale) : scale_log2(scale * kLog2E) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) largest[i][0] = largest[i][1] = -INFINITY, sum[i][0] = sum[i][1] = 0.0f;
  }

  /// s = exp(scale · (s − largest)); returns in `rescale` the factor for earlier sums.
  template <int kN>
  __device__ void make_probabilities(Accumulators<kRowTiles, kN>& s, float (&rescale)[kRowTiles][2]) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = largest[i][half];
#pragma unroll
        for (int j = 0; j < kN; ++j) most = fmaxf(most, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float shift = most == -INFINITY ? 0.0f : scale_log2 * most;  // all keys of the row were masked so far
        rescale[i][half] = exp2_approximate(fmaf(scale_log2, largest[i][half], -shift));
        largest[i][half] = most;
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < kN; ++j) {
#pragma unroll
          for (int x = 2 * half; x < 2 * half + 2; ++x) {
            s[i][j][x] = exp2_approximate(fmaf(scale_log2, s[i][j][x], -shift));
            part += s[i][j][x];
          }
        }
        sum[i][half] = fmaf(sum[i][half], rescale[i][half], part);
      }
    }
  }
  /// The sum of the whole row.
  __device__ float total(int i, int half) const {
    const float pair = sum[i][half] + __shfl_xor_sync(0xffffffffu, sum[i][half], 1);
    return pair + __shfl_xor_sync(0xffffffffu, pair, 2);
  }
};

/// s = −infinity where a query (rows, from `query` on) does not attend to a key (columns, from `key` on).
template <int kM, int kN>
__device__ void hide_unseen(Accumulators<kM, kN>& s, int query, int key, int window) {
  const int offset = query + accumulator_row() - key - accumulator_column();
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int distance = offset + 16 * i + 8 * (x / 2) - 8 * j - x % 2;
        if (distance < 0 || (window > 0 && distance >= window)) s[i][j][x] = -INFINITY;
      }
    }
  }
}

/// Writes out, from column `first_value` on, and lse of a warp's rows, the first of which is `query` of the tile's
/// document; skips rows beyond it.
template <int kM, int kN>
__device__ void store_rows(const ForwardArgs& args, const Softmax<kM>& softmax, const Accumulators<kM, kN>& out,
                           const AttentionTile& tile, int query, int head, int first_value) {
  const int quarter = lane_of_warp() % 4;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + 16 * i + 8 * half + accumulator_row();
      const float total = softmax.total(i, half), factor = 1.0f / total;
      const int64_t token = tile.begin + row;
      __nv_bfloat16* to = args.out + (token * args.num_heads + head) * args.v_head_dim + first_value;
#pragma unroll
      for (int j = 0; j < kN; j += 4) {
        uint32_t packed[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          packed[x] = pack_bf16(factor * out[i][j + x][2 * half], factor * out[i][j + x][2 * half + 1]);
        }
        transpose_quad(packed);
        const int element = 8 * (j + quarter);
        if (row < tile.length && element < args.v_head_dim - first_value) {
          *reinterpret_cast<uint4*>(to + element) = {packed[0], packed[1], packed[2], packed[3]};
        }
      }
      if (row < tile.length && quarter == 0 && first_value == 0) {
        args.lse[head * args.tokens + token] = fmaf(args.scale, softmax.largest[i][half], kLn2 * __log2f(total));
      }
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtas)
    forward_kernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kM = Shape::kRowTiles, kKeys = Shape::kKeys, kThreads = Shape::kThreads, kDim = Shape::kDim;
  extern __shared__ __align__(128) char memory[];
  const int index = static_cast<int>(blockIdx.x);
  if (!args.order.exists(index)) return;
  const auto [tile, head] = args.order.at(index);
  const int kv_head = head / (args.num_heads / args.num_kv_heads);
  const HeadRows of_q(args.q, tile.begin, head, args.num_heads, args.head_dim);
  const HeadRows of_k(args.k, tile.begin, kv_head, args.num_kv_heads, args.head_dim);
  HeadRows of_v(args.v, tile.begin, kv_head, args.num_kv_heads, args.v_head_dim);
  const int first_value = Shape::kSliced ? static_cast<int>(blockIdx.y) * Shape::kValueDim : 0;
  of_v.first += first_value;
  of_v.dim -= first_value;
  const typename Shape::Queries q{shared_address(memory)};
  const uint32_t stages = q.address + Shape::Queries::kBytes;
  const KeySteps<kKeys> steps(tile, args.window);
  const int first = static_cast<int>(threadIdx.x) / 32 * Shape::kWarpRows, query = tile.first + first;  // the warp's

  const auto keys = [&](int i) { return typename Shape::Keys{stages + i % Shape::kStages * Shape::kStageBytes}; };
  const auto values = [&](int i) { return typename Shape::Values{keys(i).address + Shape::Keys::kBytes}; };
  const auto load_keys = [&](int i) { copy_rows<kThreads>(keys(i), of_k, steps.key(i), tile.length); };
  const auto load_values = [&](int i) { copy_rows<kThreads>(values(i), of_v, steps.key(i), tile.length); };
  copy_rows<kThreads>(q, of_q, tile.first, tile.length);
  load_keys(0);
  if constexpr (Shape::kStages > 1) load_values(0);
  cp_async_commit();

  const FragmentReader<typename Shape::Queries, false, true> read_q(q, first);
  const FragmentReader<typename Shape::Keys, false, false> read_k(keys(0), 0);
  const FragmentReader<typename Shape::Values, true, false> read_v(values(0), 0);
  Fragment kept[Shape::kQueriesInRegisters ? kDim / 16 : 1][kM];
  Accumulators<kM, Shape::kValueDim / 8> out;
  clear(out);
  Softmax<kM> softmax(args.scale);
#pragma unroll 1
  for (int i = 0; i < steps.count; ++i) {
    const int key = steps.key(i);
    const uint32_t stage = static_cast<uint32_t>(i % Shape::kStages * Shape::kStageBytes);
    // A warp whose rows attend to none of these keys only takes part in loads.
    const bool seen =
        key <= query + Shape::kWarpRows - 1 && (args.window == 0 || query - (key + kKeys - 1) < args.window);
    cp_async_wait<0>();
    __syncthreads();
    if constexpr (Shape::kStages > 1) {
      if (i + 1 < steps.count) load_keys(i + 1), load_values(i + 1);
    } else {
      load_values(i);
    }
    cp_async_commit();
    if (Shape::kQueriesInRegisters && i == 0) {
#pragma unroll
      for (int k16 = 0; k16 < (Shape::kQueriesInRegisters ? kDim / 16 : 0); ++k16) {
#pragma unroll
        for (int m = 0; m < kM; ++m) read_q.read(kept[k16][m], m, k16);
      }
    }
    Accumulators<kM, kKeys / 8> s;
    if (seen) {
      clear(s);
#pragma unroll
      for (int k16 = 0; k16 < kDim / 16; ++k16) {
        Fragment b[kKeys / 16];
#pragma unroll
        for (int n = 0; n < kKeys / 16; ++n) read_k.read(b[n], n, k16, stage);
        if constexpr (Shape::kQueriesInRegisters) {
          multiply(s, kept[k16], b);
        } else {
          Fragment a[kM];
#pragma unroll
          for (int m = 0; m < kM; ++m) read_q.read(a[m], m, k16);
          multiply(s, a, b);
        }
      }
    }
    if constexpr (Shape::kStages == 1) {
      cp_async_wait<0>();
      __syncthreads();
      if (i + 1 < steps.count) load_keys(i + 1);
      cp_async_commit();
    }
    if (!seen) continue;
    if (key + kKeys - 1 > query || (args.window > 0 && query + Shape::kWarpRows - 1 - key >= args.window)) {
      hide_unseen(s, query, key, args.window);
    }
    float rescale[kM][2];
    softmax.make_probabilities(s, rescale);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      // In most steps no row of the warp gets a larger score.
      const bool grown = rescale[m][0] != 1.0f || rescale[m][1] != 1.0f;
      if (!__any_sync(0xffffffffu, grown)) continue;
#pragma unroll
      for (int n = 0; n < Shape::kValueDim / 8; ++n) {
#pragma unroll
        for (int x = 0; x < 4; ++x) out[m][n][x] *= rescale[m][x / 2];
      }
    }
#pragma unroll
    for (int k16 = 0; k16 < kKeys / 16; ++k16) {
      Fragment a[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float(&pair)[4] = s[m][2 * k16 + x / 2];
          a[m][x] = pack_bf16(pair[2 * (x % 2)], pair[2 * (x % 2) + 1]);
        }
      }
#pragma unroll
      for (int n = 0; n < Shape::kValueDim / 16; ++n) {
        Fragment b;
        read_v.read(b, n, k16, stage);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_m16n8k16(out[m][2 * n], a[m], b[0], b[1]);
          mma_m16n8k16(out[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
  store_rows(args, softmax, out, tile, query, head, first_value);
}

template <class Shape>
void launch(const Context& context, const ForwardArgs& args, int64_t items) {
  check(cudaFuncSetAttribute(forward_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes),
        "preparing attention");
  const int slices = Shape::kSliced ? (args.v_head_dim + Shape::kValueDim - 1) / Shape::kValueDim : 1;
  const dim3 grid(blocks_for(items, 1), static_cast<unsigned>(slices));
  forward_kernel<Shape><<<grid, Shape::kThreads, Shape::kBytes, stream_of(context)>>>(args);
  check_launch("computing attention");
}

using WideForward32 = ForwardShape<2 * kWideSlice, kWideSlice, 32, 1, 1>;  // 176 KB
using WideForward16 = ForwardShape<2 * kWideSlice, kWideSlice, 16, 1, 1>;  // 152 KB

}  // namespace

bool sm80_attention_serves(const Context& context, const AttentionArgs& args) {
  const AttentionOptions& options = args.options;
  const KernelTiers tiers = kernel_tiers(context);
  // The largest CTA of the smallest shapes for wide heads: WideForward16 below.
  const bool fits = !has_wide_heads(options) || tiers.shared_memory >= WideForward16::kBytes;
  return tiers.attention != Tier::kGeneral && args.q.dtype == DType::kBF16 && fits && options.head_dim % 8 == 0 &&
         options.v_head_dim % 8 == 0 && options.head_dim <= 2 * kWideSlice && options.v_head_dim <= 2 * kWideSlice &&
         args.q.shape[0] <= INT32_MAX / 2 && options.sliding_window <= INT32_MAX / 2;
}

void sm80_attention(const Context& context, const AttentionArgs& args, const AttentionTiles& tiles) {
  list_attention_tiles(context, args, TileWork::kKeys, tiles);
  const AttentionOptions& options = args.options;
  const ForwardArgs kernel_args{.order = {context, args, tiles, TileWork::kKeys},
                                .q = elements<__nv_bfloat16>(args.q),
                                .k = elements<__nv_bfloat16>(args.k),
                                .v = elements<__nv_bfloat16>(args.v),
                                .out = elements<__nv_bfloat16>(args.out),
                                .lse = elements<float>(args.lse),
                                .tokens = args.q.shape[0],
                                .num_heads = static_cast<int>(options.num_heads),
                                .num_kv_heads = static_cast<int>(options.num_kv_heads),
                                .head_dim = static_cast<int>(options.head_dim),
                                .v_head_dim = static_cast<int>(options.v_head_dim),
                                .scale = options.scale,
                                .window = static_cast<int>(options.sliding_window)};
  const auto start = [&](auto shape) {
    launch<decltype(shape)>(context, kernel_args, tiles.count * options.num_heads);
  };
  const size_t shared_memory = kernel_tiers(context).shared_memory;
  if (has_wide_heads(options)) {
    return with_attention_shape<WideForward32, WideForward16>(options.head_dim, kWideSlice, shared_memory, start);
  }
  with_attention_shape<ForwardShape<64, 64, 64, 2, 2>,                                       // 48 KB
                       ForwardShape<128, 128, 64, 2, 2>, ForwardShape<128, 128, 64, 1, 2>,   // 96, 64 KB
                       ForwardShape<128, 128, 32, 1, 2>,                                     // 48 KB
                       ForwardShape<192, 128, 64, 1, 2>, ForwardShape<192, 128, 32, 1, 1>,   // 88, 68 KB
                       ForwardShape<256, 256, 64, 1, 1>, ForwardShape<256, 256, 32, 1, 1>>(  // 128, 96 KB
      options.head_dim, options.v_head_dim, shared_memory, start);
}

}  // namespace hone::cuda::sm80
