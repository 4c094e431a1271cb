// Backward of the state-space scan by chunks, after the states and their gradients: values, keys and finish
// (ssd_chunks_cuda.h).
#include "ops/ssd_scan/ssd_chunks_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 32 * kSsdWarps;

/// Destinations of gradients, null if not wanted.
struct SsdGradients {
  const Half* dout;
  Half *dxbc, *ddt;
  bool add_xbc, add_dt;
  float *a_log, *dt_bias, *d;  // SsdWeightParts

  SsdGradients(const SsdScanGradArgs& args, const SsdWeightParts& parts)
      : dout(elements<Half>(args.dout)),
        dxbc(elements<Half>(args.dxbc.dst)),
        ddt(elements<Half>(args.ddt.dst)),
        add_xbc(args.dxbc.beta != 0.0f),
        add_dt(args.ddt.beta != 0.0f),
        a_log(elements<float>(parts.a_log)),
        dt_bias(elements<float>(parts.dt_bias)),
        d(elements<float>(parts.d)) {}
};

// -- Values

struct ValueStage {
  Half dstate[kSsdSize * kSsdNarrow], x[kSsdTokens * kSsdNarrow], dout[kSsdTokens * kSsdNarrow];
  SsdSteps steps;
};
union ValueShared {
  ValueStage stages[2];
  SsdKeyTiles keys;
};
static_assert(sizeof(ValueShared) <= kLeastSsdShared);

/// Stores a number of each of a warp's 16 rows, which all lanes of the row have.
__device__ void store_row_numbers(float* to, const float (&numbers)[2]) {
  if (threadIdx.x % 4 != 0) return;
  to[sum_row(0)] = numbers[0];
  to[sum_row(2)] = numbers[1];
}

/// Sums of 16 columns over the eight lanes that share each: sums[part][odd] is this lane's of column 8 part +
/// sum_column() + odd. All lanes must call this; half of them store to to[column].
__device__ void store_column_sums(float* to, const float (&sums)[2][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool part = (lane & 16) != 0, odd = (lane & 8) != 0;
  float kept[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    kept[i] = (part ? sums[1][i] : sums[0][i]) + __shfl_xor_sync(0xffffffffu, part ? sums[0][i] : sums[1][i], 16);
  }
  float sum = (odd ? kept[1] : kept[0]) + __shfl_xor_sync(0xffffffffu, odd ? kept[0] : kept[1], 8);
  sum += __shfl_xor_sync(0xffffffffu, sum, 4);
  if ((lane & 4) == 0) to[(part ? 8 : 0) + sum_column() + (odd ? 1 : 0)] = sum;
}

/// A warp has 16 tokens j of the chunk, and matrices [j, i].
__global__ void __launch_bounds__(kThreads, 2)
    values_kernel(const SsdArguments<Half> in, const SsdChunkBuffers buffers, const SsdGradients out) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<ValueShared*>(memory);
  const SsdBlock at(in, buffers, blockIdx.x);
  const SsdPlace& place = at.place;
  if (place.rows == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, row = 16 * warp;
  copy_rows<kSsdTokens, kSsdSize, kThreads>(shared.keys.b, in.xbc + in.b(place.row, at.group), in.width, place.rows);
  copy_rows<kSsdTokens, kSsdSize, kThreads>(shared.keys.c, in.xbc + in.c(place.row, at.group), in.width, place.rows);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  Sums<1, kSsdTokens / 8> products = {}, dproducts = {};  // B Cᵀ and its gradient
  uint32_t b[kSsdSize / 16][4];
#pragma unroll
  for (int k = 0; k < kSsdSize / 16; ++k) {
    ByRow<kSsdSize>{shared.keys.b}.load_first(b[k], row, 16 * k);
#pragma unroll
    for (int tile = 0; tile < kSsdWarps; ++tile) {
      if (tile < warp) continue;
      uint32_t c[4];
      ByRow<kSsdSize>{shared.keys.c}.load_second(c, 16 * tile, 16 * k);
      mma_m16n8k16(products[0][2 * tile], b[k], c[0], c[1]);
      mma_m16n8k16(products[0][2 * tile + 1], b[k], c[2], c[3]);
    }
  }
  __syncthreads();
  const auto copy = [&](int head) {
    if (head < at.end) {
      ValueStage& stage = shared.stages[(head - at.begin) % 2];
      copy_rows<kSsdTokens, kSsdDim, kThreads>(stage.x, in.xbc + in.x(place.row, head), in.width, place.rows);
      copy_rows<kSsdTokens, kSsdDim, kThreads>(stage.dout, out.dout + in.output(place.row, head),
                                               int64_t{in.heads} * kSsdDim, place.rows);
      copy_steps<kThreads>(stage.steps, buffers.steps[at.item * in.heads + head]);
      if (!place.last) {
        copy_rows<kSsdSize, kSsdDim, kThreads>(stage.dstate, buffers.dstates + in.state(place.after, head), kSsdDim,
                                               kSsdSize);
      }
    }
    cp_async_commit();
  };
  copy(at.begin);
  for (int head = at.begin; head < at.end; ++head) {
    cp_async_wait<0>();
    __syncthreads();
    copy(head + 1);
    const ValueStage& stage = shared.stages[(head - at.begin) % 2];
    const SsdSteps& steps = stage.steps;
    SsdParts& parts = buffers.parts[at.item * in.heads + head];
    const float own[2] = {steps.sums[row + sum_row(0)], steps.sums[row + sum_row(2)]};
    const float delta[2] = {steps.delta[row + sum_row(0)], steps.delta[row + sum_row(2)]};

    Sums<1, kSsdDim / 8> sums = {};
    float after[2] = {};
    if (!place.last) {
#pragma unroll
      for (int k = 0; k < kSsdSize / 16; ++k) {
#pragma unroll
        for (int n = 0; n < kSsdDim / 8; n += 2) {
          uint32_t dstate[4];
          ByDepth<kSsdDim>{stage.dstate}.load_second(dstate, 8 * n, 16 * k);
          mma_m16n8k16(sums[0][n], b[k], dstate[0], dstate[1]);
          mma_m16n8k16(sums[0][n + 1], b[k], dstate[2], dstate[3]);
        }
      }
      const float last = steps.sums[kSsdTokens - 1];
      const float to_end[2] = {exp2_approximate(last - own[0]), exp2_approximate(last - own[1])};
#pragma unroll
      for (int n = 0; n < kSsdDim / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 x = load_pair(stage.x + (row + sum_row(2 * half)) * kSsdNarrow + 8 * n + sum_column());
          float &first = sums[0][n][2 * half], &second = sums[0][n][2 * half + 1];
          first *= to_end[half], second *= to_end[half];
          after[half] = fmaf(first, x.x, fmaf(second, x.y, after[half]));
        }
      }
    }
    float inner[2] = {};
#pragma unroll
    for (int tile = 0; tile < kSsdWarps; ++tile) {
      if (tile < warp) continue;
      Sums<1, 2> e = {};
      add_product(e, ByRow<kSsdDim>{stage.x}, row, ByRow<kSsdDim>{stage.dout}, 16 * tile, 0, kSsdDim);
      uint32_t p[4];
      float columns[2][2];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int column = 16 * tile + 8 * part + sum_column();
        const float2 sum = *reinterpret_cast<const float2*>(steps.sums + column);
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          columns[part][odd] = 0.0f;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int i = column + odd, j = row + sum_row(2 * half);
            float& product = products[0][2 * tile + part][2 * half + odd];
            float& value = e[0][part][2 * half + odd];
            const float decay = i >= j ? exp2_approximate((odd ? sum.y : sum.x) - own[half]) : 0.0f;
            const float gradient = value * decay, both = gradient * product;
            dproducts[0][2 * tile + part][2 * half + odd] =
                fmaf(gradient, delta[half], dproducts[0][2 * tile + part][2 * half + odd]);
            if (i == j) {
              parts.diagonal[j] = both;
              parts.skipped[j] = value;
            } else {
              inner[half] += both;
              columns[part][odd] = fmaf(both, delta[half], columns[part][odd]);
            }
            value = product * decay;
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          p[2 * part + half] = pack_bf16(e[0][part][2 * half], e[0][part][2 * half + 1]);
        }
      }
      store_column_sums(parts.reads[warp] + 16 * tile, columns);
#pragma unroll
      for (int n = 0; n < kSsdDim / 8; n += 2) {
        uint32_t dout[4];
        ByDepth<kSsdDim>{stage.dout}.load_second(dout, 8 * n, 16 * tile);
        mma_m16n8k16(sums[0][n], p, dout[0], dout[1]);
        mma_m16n8k16(sums[0][n + 1], p, dout[2], dout[3]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      after[half] = row_lanes_sum(after[half]);
      inner[half] = row_lanes_sum(inner[half]);
    }
    store_row_numbers(parts.after + row, after);
    store_row_numbers(parts.inner + row, inner);
    if (out.dxbc == nullptr) continue;
    const float skip = in.d.at(head);
#pragma unroll
    for (int n = 0; n < kSsdDim / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 dout = load_pair(stage.dout + (row + sum_row(2 * half)) * kSsdNarrow + 8 * n + sum_column());
        float &first = sums[0][n][2 * half], &second = sums[0][n][2 * half + 1];
        first = fmaf(delta[half], first, skip * dout.x), second = fmaf(delta[half], second, skip * dout.y);
      }
    }
    Half* const to = out.dxbc + in.x(place.row + row, head);
    if (out.add_xbc) {
      store_sums<kSsdDim / 32, true>(to, in.width, sums, place.rows - row);
    } else {
      store_sums<kSsdDim / 32, false>(to, in.width, sums, place.rows - row);
    }
  }
  const int64_t pairs = (at.item * in.groups + at.group) * buffers.blocks + at.block;
  store_sums<kSsdTokens / 32, false>(buffers.pairs + (pairs * kSsdTokens + row) * kSsdTokens, kSsdTokens, dproducts,
                                     16);
}

// -- Keys

struct KeyStage {
  Half state[kSsdSize * kSsdNarrow], values[kSsdTokens * kSsdNarrow];
  SsdSteps steps;
};
struct PairTiles {
  Half keys[kSsdTokens * kSsdWide], pairs[kSsdTokens * kSsdNarrow];
};
struct KeyShared {
  union {
    KeyStage stages[2];
    PairTiles pairs;
  };
  Half c[kSsdTokens * kSsdWide];
};
static_assert(sizeof(KeyShared) <= kLeastSsdShared);

/// Even CTAs compute gradients of C from S, odd ones of B from Z. A warp has 16 tokens.
__global__ void __launch_bounds__(kThreads, 3)
    keys_kernel(const SsdArguments<Half> in, const SsdChunkBuffers buffers, const SsdGradients out) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<KeyShared*>(memory);
  const bool of_c = blockIdx.x % 2 == 0;
  const SsdBlock at(in, buffers, blockIdx.x / 2);
  const SsdPlace& place = at.place;
  if (place.rows == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, row = 16 * warp;
  const int64_t b = in.b(place.row, at.group), c = in.c(place.row, at.group);
  copy_rows<kSsdTokens, kSsdSize, kThreads>(shared.pairs.keys, in.xbc + (of_c ? b : c), in.width, place.rows);
  const int64_t pairs = (at.item * in.groups + at.group) * buffers.blocks + at.block;
  copy_rows<kSsdTokens, kSsdTokens, kThreads>(shared.pairs.pairs, buffers.pairs + pairs * kSsdTokens * kSsdTokens,
                                              kSsdTokens, kSsdTokens);
  if (of_c) copy_rows<kSsdTokens, kSsdSize, kThreads>(shared.c, in.xbc + c, in.width, place.rows);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  Sums<1, kSsdSize / 8> sums = {};
  const ByDepth<kSsdSize> keys{shared.pairs.keys};
  if (of_c) {
    add_product(sums, ByDepth<kSsdTokens>{shared.pairs.pairs}, row, keys, 0, 0, row + 16);
  } else {
    add_product(sums, ByRow<kSsdTokens>{shared.pairs.pairs}, row, keys, 0, row, kSsdTokens);
  }
  __syncthreads();
  const bool has_state = of_c ? !place.first() : !place.last;
  const auto copy = [&](int head) {
    if (has_state && head < at.end) {
      KeyStage& stage = shared.stages[(head - at.begin) % 2];
      const Half* const values = of_c ? out.dout + in.output(place.row, head) : in.xbc + in.x(place.row, head);
      copy_rows<kSsdTokens, kSsdDim, kThreads>(stage.values, values, of_c ? int64_t{in.heads} * kSsdDim : in.width,
                                               place.rows);
      const Half* const state =
          of_c ? buffers.states + in.state(place.after - 1, head) : buffers.dstates + in.state(place.after, head);
      copy_rows<kSsdSize, kSsdDim, kThreads>(stage.state, state, kSsdDim, kSsdSize);
      copy_steps<kThreads>(stage.steps, buffers.steps[at.item * in.heads + head]);
    }
    cp_async_commit();
  };
  copy(at.begin);
  for (int head = at.begin; head < at.end; ++head) {
    cp_async_wait<0>();
    __syncthreads();
    copy(head + 1);
    const KeyStage& stage = shared.stages[(head - at.begin) % 2];
    const int64_t pair = at.item * in.heads + head;
    float before[2] = {}, kept = 0.0f;
    if (has_state) {
      const float* const factors = of_c ? stage.steps.grown : stage.steps.into;
      const float factor[2] = {factors[row + sum_row(0)], factors[row + sum_row(2)]};
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        Sums<1, 4> product = {};
        add_product(product, ByRow<kSsdDim>{stage.values}, row, ByRow<kSsdDim>{stage.state}, 32 * quarter, 0, kSsdDim);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float first = factor[half] * product[0][n][2 * half];
            const float second = factor[half] * product[0][n][2 * half + 1];
            sums[0][4 * quarter + n][2 * half] += first;
            sums[0][4 * quarter + n][2 * half + 1] += second;
            if (!of_c) continue;
            const float2 key =
                load_pair(shared.c + (row + sum_row(2 * half)) * kSsdWide + 32 * quarter + 8 * n + sum_column());
            before[half] = fmaf(first, key.x, fmaf(second, key.y, before[half]));
          }
        }
      }
      if (!of_c && !place.first()) {
        const Half* const state = buffers.states + in.state(place.after - 1, head);
#pragma unroll 2
        for (int element = static_cast<int>(threadIdx.x) * 8; element < kSsdSize * kSsdDim; element += kThreads * 8) {
          const uint4 s = *reinterpret_cast<const uint4*>(state + element);
          const uint4 z =
              *reinterpret_cast<const uint4*>(stage.state + element / kSsdDim * kSsdNarrow + element % kSsdDim);
          const uint32_t of_s[4] = {s.x, s.y, s.z, s.w}, of_z[4] = {z.x, z.y, z.z, z.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 left = unpack_bf16(of_s[i]), right = unpack_bf16(of_z[i]);
            kept = fmaf(left.x, right.x, fmaf(left.y, right.y, kept));
          }
        }
      }
    }
    if (of_c) {
#pragma unroll
      for (float& value : before) value = row_lanes_sum(value);
      store_row_numbers(buffers.parts[pair].before + row, before);
    } else {
      kept = warp_sum(kept);
      if (threadIdx.x % 32 == 0) buffers.kept[pair * kSsdWarps + warp] = kept;
    }
  }
  if (out.dxbc == nullptr) return;
  const int column = ((of_c ? in.groups : 0) + at.group) * kSsdSize;
  if (buffers.blocks == 1) {
    Half* const to = out.dxbc + (place.row + row) * in.width + in.heads * kSsdDim + column;
    if (out.add_xbc) {
      store_sums<kSsdSize / 32, true>(to, in.width, sums, place.rows - row);
    } else {
      store_sums<kSsdSize / 32, false>(to, in.width, sums, place.rows - row);
    }
    return;
  }
  const int64_t stride = int64_t{2} * in.groups * kSsdSize;
  float* const to = buffers.keys + (at.block * in.tokens + place.row + row) * stride + column;
  for_pairs(sums, [&](int r, int k, float first, float second) {
    if (row + r < place.rows) *reinterpret_cast<float2*>(to + r * stride + k) = {first, second};
  });
}

/// The gradients of B and C, summed over the blocks of heads; a thread has four columns.
__global__ void __launch_bounds__(256)
    sum_blocks_kernel(const SsdArguments<Half> in, const SsdChunkBuffers buffers, const SsdGradients out) {
  const int64_t columns = int64_t{2} * in.groups * kSsdSize, all = in.tokens * columns;
  const int64_t at = (int64_t{blockIdx.x} * 256 + threadIdx.x) * 4;
  if (at >= all) return;
  float4 sum = *reinterpret_cast<const float4*>(buffers.keys + at);
  for (int block = 1; block < buffers.blocks; ++block) {
    const float4 next = *reinterpret_cast<const float4*>(buffers.keys + block * all + at);
    sum.x += next.x, sum.y += next.y, sum.z += next.z, sum.w += next.w;
  }
  uint2& to = *reinterpret_cast<uint2*>(out.dxbc + at / columns * in.width + in.heads * kSsdDim + at % columns);
  if (out.add_xbc) {
    const float2 first = unpack_bf16(to.x), second = unpack_bf16(to.y);
    sum.x += first.x, sum.y += first.y, sum.z += second.x, sum.w += second.y;
  }
  to = {pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)};
}

// -- Finish

constexpr int kFinishWarps = 8;

/// A warp per chunk and head, two tokens per lane. Gradients of G are differences of larger sums if the decay is
/// strong, so they are added up in float64.
__global__ void __launch_bounds__(32 * kFinishWarps)
    finish_kernel(const SsdArguments<Half> in, int64_t pairs, const SsdChunkBuffers buffers, const SsdGradients out) {
  const int64_t pair = int64_t{blockIdx.x} * kFinishWarps + threadIdx.x / 32;
  if (pair >= pairs) return;
  const int head = static_cast<int>(pair % in.heads), lane = static_cast<int>(threadIdx.x) % 32;
  const SsdPlace place = in.place(pair / in.heads);
  float da_log = 0.0f, ddt_bias = 0.0f, dd = 0.0f;
  if (place.rows > 0) {
    const SsdSteps& steps = buffers.steps[pair];
    const SsdParts& parts = buffers.parts[pair];
    double dg[2] = {}, added = 0.0;
    float ddelta[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * lane + i;
      if (token >= place.rows) continue;
      float reads = parts.before[token];
      for (int warp = 0; warp <= token / 16; ++warp) reads += parts.reads[warp][token];
      const float leaves = parts.inner[token] + parts.after[token];
      dg[i] = static_cast<double>(reads) - static_cast<double>(steps.delta[token] * leaves);
      ddelta[i] = leaves + parts.diagonal[token];
      added += static_cast<double>(steps.delta[token] * parts.after[token]);
      dd += parts.skipped[token];
    }
    added = warp_sum(added);
    const float* const kept = buffers.kept + pair * kSsdWarps;
    const float all = ((kept[0] + kept[1]) + (kept[2] + kept[3])) * exp2f(steps.sums[kSsdTokens - 1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (2 * lane + i == place.rows - 1) dg[i] += added + static_cast<double>(all);
    }
    double sum = dg[0] + dg[1];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const double other = __shfl_down_sync(0xffffffffu, sum, offset);
      if (lane + offset < 32) sum += other;
    }
    const float of_sums[2] = {static_cast<float>(sum), static_cast<float>(sum - dg[0])};
    const float rate = -expf(in.a_log.at(head));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * lane + i;
      if (token >= place.rows) continue;
      const SsdStep step = in.step(place.row + token, head);
      const float ddt = fmaf(of_sums[i], rate, ddelta[i]) * step.slope;
      da_log = fmaf(of_sums[i], step.g, da_log);
      ddt_bias += ddt;
      if (out.ddt == nullptr) continue;
      Half& to = out.ddt[(place.row + token) * in.heads + head];
      to = from_float<Half>(out.add_dt ? ddt + to_float(to) : ddt);
    }
    da_log = warp_sum(da_log), ddt_bias = warp_sum(ddt_bias), dd = warp_sum(dd);
  }
  if (lane != 0) return;
  if (out.a_log != nullptr) out.a_log[pair] = da_log;
  if (out.dt_bias != nullptr) out.dt_bias[pair] = ddt_bias;
  if (out.d != nullptr) out.d[pair] = dd;
}

}  // namespace

void scan_ssd_chunks_back(cudaStream_t stream, const SsdScanGradArgs& grad_args, const SsdWeightParts& parts,
                          const SsdChunkScratch& scratch) {
  const SsdScanArgs& args = grad_args.forward;
  const SsdGradients gradients(grad_args, parts);
  find_ssd_chunk_states(stream, args, gradients.dout, scratch);
  const SsdArguments<Half> in(args);
  const SsdChunkBuffers buffers(args.heads, scratch);
  const int64_t items = ssd_items(args), blocks = items * args.heads.num_groups * buffers.blocks;
  const char* const running = "differentiating the state-space scan";
  allow_shared_memory(&values_kernel, sizeof(ValueShared));
  values_kernel<<<blocks_for(blocks, 1), kThreads, sizeof(ValueShared), stream>>>(in, buffers, gradients);
  check_launch(running);
  allow_shared_memory(&keys_kernel, sizeof(KeyShared));
  keys_kernel<<<blocks_for(2 * blocks, 1), kThreads, sizeof(KeyShared), stream>>>(in, buffers, gradients);
  check_launch(running);
  if (buffers.blocks > 1 && gradients.dxbc != nullptr) {
    sum_blocks_kernel<<<blocks_for(in.tokens * 2 * args.heads.keys(), 4 * 256), 256, 0, stream>>>(in, buffers,
                                                                                                  gradients);
    check_launch("summing the gradients of B and C");
  }
  const int64_t pairs = items * args.heads.num_heads;
  finish_kernel<<<blocks_for(pairs, kFinishWarps), 32 * kFinishWarps, 0, stream>>>(in, pairs, buffers, gradients);
  check_launch(running);
}

}  // namespace hone::cuda
