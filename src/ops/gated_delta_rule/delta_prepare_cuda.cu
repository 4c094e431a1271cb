// The state-independent part of each chunk, all chunks at once: the inverse of its triangular system, W, U, P and the
// scales. Bound by latency, so three CTAs share a multiprocessor.
#include "kernels/cuda/tiers.h"
#include "ops/gated_delta_rule/delta_chunks_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 128, kWide = padded(kDeltaDim), kNarrow = padded(kDeltaRows);
/// Row stride of float32 matrices [tokens, tokens].
constexpr int kExact = kDeltaRows + 8;

struct PrepareShared {
  Half k[kDeltaRows * kWide];
  Half v[kDeltaRows * kWide];  // later U
  union {
    Half q[kDeltaRows * kWide];  // later W
    float a[kDeltaRows * kExact];
  };
  Half factors[2][kDeltaRows * kNarrow];  // P; T in bfloat16 with columns scaled for W and for U
  float q_inverse[kDeltaRows], k_inverse[kDeltaRows], g[kDeltaRows];
  alignas(16) float beta[kDeltaRows], to_w[kDeltaRows];  // scales of the columns of T
};

static_assert(sizeof(PrepareShared) <= kLeastDeltaShared);

/// 1 / norm of each row, two threads per row; rows from `valid` on are padding.
__device__ void invert_norms(const Half* rows, float* inverse, int valid, float length) {
  const int row = static_cast<int>(threadIdx.x) / 2, half = static_cast<int>(threadIdx.x) % 2;
  const Half* from = rows + row * kWide + half * (kDeltaDim / 2);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kDeltaDim / 2; i += 8) {
    float values[8];
    const uint4 words = *reinterpret_cast<const uint4*>(from + i);
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&words);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const float2 both = __bfloat1622float2(pairs[pair]);
      values[2 * pair] = both.x, values[2 * pair + 1] = both.y;
    }
#pragma unroll
    for (const float value : values) squares = fmaf(value, value, squares);
  }
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  if (half == 0) inverse[row] = row < valid ? length * rsqrtf(squares + kDeltaNormEps) : 0.0f;
}

/// Inverts a [64, 64] = I + A in place, where A is strictly lower triangular; entries above the diagonal are ignored.
/// One warp per half of 32 rows, one lane per column; then T21 = −T22 A21 T11.
__device__ void invert_triangle(float* a) {
  constexpr int kHalf = kDeltaRows / 2;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (warp < 2) {
    float* block = a + warp * kHalf * (kExact + 1);
    float x[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      float sums[4] = {i == lane ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < i; ++j) sums[j % 4] = fmaf(-block[i * kExact + j], x[j], sums[j % 4]);
      x[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kHalf; ++i) block[i * kExact + lane] = x[i];
  }
  __syncthreads();
  // Eight columns of a row per thread. The upper right block is free: it stores A21 T11 between the two products.
  const int row = static_cast<int>(threadIdx.x) / 4, column = static_cast<int>(threadIdx.x) % 4 * 8;
  const auto multiply = [&](const float* left, const float* right, float(&sums)[8]) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float factor = left[row * kExact + i];
      const float4 low = *reinterpret_cast<const float4*>(right + i * kExact + column);
      const float4 high = *reinterpret_cast<const float4*>(right + i * kExact + column + 4);
      sums[0] = fmaf(factor, low.x, sums[0]), sums[1] = fmaf(factor, low.y, sums[1]);
      sums[2] = fmaf(factor, low.z, sums[2]), sums[3] = fmaf(factor, low.w, sums[3]);
      sums[4] = fmaf(factor, high.x, sums[4]), sums[5] = fmaf(factor, high.y, sums[5]);
      sums[6] = fmaf(factor, high.z, sums[6]), sums[7] = fmaf(factor, high.w, sums[7]);
    }
  };
  float* a21 = a + kHalf * kExact;
  float* middle = a + kHalf;
  float first[8] = {}, second[8] = {};
  multiply(a21, a, first);
#pragma unroll
  for (int i = 0; i < 8; ++i) middle[row * kExact + column + i] = first[i];
  __syncthreads();
  multiply(a21 + kHalf, middle, second);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    a21[row * kExact + column + i] = -second[i];
    middle[row * kExact + column + i] = 0.0f;
  }
  __syncthreads();
}

/// Stores a as bfloat16, columns multiplied by `scale` unless that is null; two threads per row.
__device__ void store_scaled(const float* a, const float* scale, Half* to) {
  const int row = static_cast<int>(threadIdx.x) / 2, first = static_cast<int>(threadIdx.x) % 2 * 4;
#pragma unroll
  for (int column = first; column < kDeltaRows; column += 8) {
    float4 values = *reinterpret_cast<const float4*>(a + row * kExact + column);
    if (scale != nullptr) {
      const float4 by = *reinterpret_cast<const float4*>(scale + column);
      values.x *= by.x, values.y *= by.y, values.z *= by.z, values.w *= by.w;
    }
    *reinterpret_cast<uint2*>(to + row * kNarrow + column) = {pack_bf16(values.x, values.y),
                                                              pack_bf16(values.z, values.w)};
  }
}

__global__ void __launch_bounds__(kThreads, 3) prepare_kernel(const DeltaInputs<Half> in, const DeltaBuffers out) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<PrepareShared*>(memory);
  const DocumentTile tile = find_document_tile(in.cu_seqlens, in.documents, static_cast<int>(blockIdx.x));
  if (tile.first >= tile.length) return;
  const int head = static_cast<int>(blockIdx.y), key_head = head / in.group(), thread = static_cast<int>(threadIdx.x);
  const int valid = static_cast<int>(min(tile.length - tile.first, int64_t{kDeltaRows}));
  const int64_t token = tile.begin + tile.first;
  copy_rows<kDeltaRows, kDeltaDim, kThreads>(shared.k, in.qkv + in.key(token, key_head), in.width, valid);
  copy_rows<kDeltaRows, kDeltaDim, kThreads>(shared.q, in.qkv + in.query(token, key_head), in.width, valid);
  cp_async_commit();
  copy_rows<kDeltaRows, kDeltaDim, kThreads>(shared.v, in.qkv + in.value(token, head), in.width, valid);
  cp_async_commit();
  if (thread < kDeltaRows) {
    DeltaGate gate{};
    if (thread < valid) gate = in.gate(token + thread, head);
    shared.beta[thread] = gate.beta;
    shared.g[thread] = gate.g;
  }
  cp_async_wait<1>();
  __syncthreads();
  sum_gates(shared.g);
  invert_norms(shared.q, shared.q_inverse, valid, rsqrtf(static_cast<float>(kDeltaDim)));
  invert_norms(shared.k, shared.k_inverse, valid, 1.0f);
  __syncthreads();
  const int64_t place = token * in.value_heads + head, stride = in.value_heads;
  if (thread < valid) {
    const float g = shared.g[thread], grown = expf(g);
    out.scales[place + thread * stride] = {.query = grown * shared.q_inverse[thread],
                                           .key = expf(shared.g[kDeltaRows - 1] - g) * shared.k_inverse[thread],
                                           .grown = grown,
                                           .beta = shared.beta[thread]};
  }
  if (thread < kDeltaRows) {
    shared.to_w[thread] = shared.beta[thread] * shared.k_inverse[thread] * __expf(shared.g[thread]);
  }

  const int first_row = thread / 32 * 16;
  Sums<1, 8> qk = {}, kk = {};
  const ByRow<kDeltaDim> q{shared.q}, k{shared.k};
  add_products(qk, kk, q, k, first_row, k, 0, kDeltaDim);
  __syncthreads();  // q has been read; A overwrites it
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int column = 8 * n + sum_column();
    const float2 g = *reinterpret_cast<const float2*>(shared.g + column);
    const float2 inverse = *reinterpret_cast<const float2*>(shared.k_inverse + column);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int row = first_row + sum_row(i);
      const float g_row = shared.g[row], to_p = shared.q_inverse[row], to_a = shared.beta[row] * shared.k_inverse[row];
      const float decay = column <= row ? __expf(g_row - g.x) * inverse.x : 0.0f;
      const float next = column < row ? __expf(g_row - g.y) * inverse.y : 0.0f;
      store_pair(shared.factors[0] + row * kNarrow + column, to_p * decay * qk[0][n][i], to_p * next * qk[0][n][i + 1]);
      *reinterpret_cast<float2*>(shared.a + row * kExact + column) = {
          column < row ? to_a * decay * kk[0][n][i] : 0.0f, column + 1 < row ? to_a * next * kk[0][n][i + 1] : 0.0f};
    }
  }
  __syncthreads();
  write_rows<kDeltaRows, kDeltaRows, kThreads>(out.p + place * kDeltaRows, stride * kDeltaRows, shared.factors[0],
                                               valid);
  invert_triangle(shared.a);

  if (out.inverse != nullptr) {
    store_scaled(shared.a, nullptr, shared.factors[0]);
    __syncthreads();
    write_rows<kDeltaRows, kDeltaRows, kThreads>(out.inverse + place * kDeltaRows, stride * kDeltaRows,
                                                 shared.factors[0], valid);
    __syncthreads();
  }
  store_scaled(shared.a, shared.to_w, shared.factors[0]);
  store_scaled(shared.a, shared.beta, shared.factors[1]);
  cp_async_wait<0>();
  __syncthreads();
  const auto store_product = [&](Sums<1, 16>& sums, Half* to) {
    for_pairs(sums, [&](int row, int column, float first, float second) {
      store_pair(to + (first_row + row) * kWide + column, first, second);
    });
  };
  {
    Sums<1, 16> w = {};
    for (int depth = 0; depth <= first_row; depth += 16) {
      add_product(w, ByRow<kDeltaRows>{shared.factors[0]}, first_row, ByDepth<kDeltaDim>{shared.k}, 0, depth,
                  depth + 16);
    }
    store_product(w, shared.q);  // A has been read
  }
  {
    Sums<1, 16> u = {};
    for (int depth = 0; depth <= first_row; depth += 16) {
      add_product(u, ByRow<kDeltaRows>{shared.factors[1]}, first_row, ByDepth<kDeltaDim>{shared.v}, 0, depth,
                  depth + 16);
    }
    __syncthreads();  // v has been read
    store_product(u, shared.v);
  }
  __syncthreads();
  write_rows<kDeltaRows, kDeltaDim, kThreads>(out.w + place * kDeltaDim, stride * kDeltaDim, shared.q, valid);
  write_rows<kDeltaRows, kDeltaDim, kThreads>(out.u + place * kDeltaDim, stride * kDeltaDim, shared.v, valid);
}

}  // namespace

DeltaScratch::DeltaScratch(ArenaScope& memory, const DeltaRuleArgs& args, bool backward) {
  const int64_t tokens = args.qkv.shape[0], heads = args.heads.num_value_heads;
  scales = memory.take({tokens, heads, 4}, DType::kF32);
  p = memory.take({tokens, heads, kDeltaRows}, DType::kBF16);
  w = memory.take({tokens, heads, kDeltaDim}, DType::kBF16);
  u = memory.take({tokens, heads, kDeltaDim}, DType::kBF16);
  if (!backward) return;
  inverse = memory.take({tokens, heads, kDeltaRows}, DType::kBF16);
  du = memory.take({tokens, heads, kDeltaDim}, DType::kBF16);
  for (Tensor* of_states : {&states, &dstates}) {
    *of_states = memory.take({tokens / kDeltaRows, heads, kDeltaDim, kDeltaDim}, DType::kBF16);
  }
}

bool delta_chunks_serve(const Context& context, const DeltaRuleArgs& args) {
  const bool served = kernel_tiers(context).delta_rule == Tier::kSm80 && args.qkv.dtype == DType::kBF16 &&
                      args.heads.key_dim == kDeltaDim && args.heads.value_dim == kDeltaDim && !args.state.s.defined();
  return served && allows_vectors(args.qkv, args.heads.width(), 8) && allows_vectors(args.out, kDeltaDim, 8);
}

void prepare_delta_chunks(const Context& context, const DeltaRuleArgs& args, const DeltaScratch& scratch) {
  const dim3 grid(tiles_of_documents(args.qkv.shape[0], args.sequences.num_documents),
                  static_cast<unsigned>(args.heads.num_value_heads));
  allow_shared_memory(&prepare_kernel, sizeof(PrepareShared));
  prepare_kernel<<<grid, kThreads, sizeof(PrepareShared), stream_of(context)>>>(DeltaInputs<Half>(args),
                                                                                DeltaBuffers(scratch));
  check_launch("preparing chunks of the delta rule");
}

}  // namespace hone::cuda
