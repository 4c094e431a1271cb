// The state-space scan for any GPU, dtype and size: what chunks add to their document's state, all at once; the states,
// chunk after chunk; then the outputs of all chunks at once. Products are as exact as float32's: by tensor cores in
// bfloat16, whose operands are read element by element. Generation continues token by token.
#include "ops/ssd_scan/ssd_general_cuda.h"

namespace hone::cuda {

namespace {

/// What one chunk and head adds to the state after it, or to the gradient of the state before it (kGradient).
template <class T, bool kGradient>
__global__ void __launch_bounds__(kSsdThreads)
    additions_kernel(const SsdArguments<T> in, const T* dout, float* states, float* growth) {
  constexpr int kRows = kSsdRows<T>;
  extern __shared__ __align__(16) char memory[];
  __shared__ SsdTokens<kRows> tokens;
  const SsdPlace place = in.place(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y), group = in.group_of(head);
  if (place.rows == 0 || (kGradient ? place.first() : place.last)) return;
  const int key_pitch = ssd_pitch<T>(in.size), value_pitch = ssd_pitch<T>(in.dim);
  T* const keys = reinterpret_cast<T*>(memory);
  T* const values = keys + kRows * key_pitch;
  if constexpr (kGradient) {
    load_ssd_rows(in.xbc + in.c(place.row, group), in.width, place.rows, in.size, keys);
    load_ssd_rows(dout + in.output(place.row, head), int64_t{in.heads} * in.dim, place.rows, in.dim, values);
  } else {
    load_ssd_rows(in.xbc + in.b(place.row, group), in.width, place.rows, in.size, keys);
    load_ssd_rows(in.xbc + in.x(place.row, head), in.width, place.rows, in.dim, values);
  }
  tokens.load(in, place, head);
  if (!kGradient && threadIdx.x == 0) growth[int64_t{blockIdx.x} * in.heads + head] = tokens.grown[place.rows - 1];
  float* const state = states + in.state(kGradient ? place.after - 1 : place.after, head);
  ssd_elements<T>(
      in.size, in.dim, place.rows, [&](int k, int t) { return keys[t * key_pitch + k]; },
      [&](int t, int j) {
        const float factor = kGradient ? tokens.grown[t] : tokens.to_end[t] * tokens.delta[t];
        return factor * to_float(values[t * value_pitch + j]);
      },
      [&](int k, int j, float sum) { state[k * in.dim + j] = sum; });
}

/// Adds up the states of a document, forward or, for gradients, backward; one thread per element of all heads' states.
template <class T, bool kGradient>
__global__ void __launch_bounds__(kSsdThreads)
    carry_kernel(const SsdArguments<T> in, float* states, const float* growth) {
  constexpr int kRows = kSsdRows<T>;
  const int64_t per_head = int64_t{in.size} * in.dim, per_slot = per_head * in.heads;
  const int64_t element = int64_t{blockIdx.x} * kSsdThreads + threadIdx.x;
  if (element >= per_slot) return;
  const int document = static_cast<int>(blockIdx.y), head = static_cast<int>(element / per_head);
  const int64_t begin = in.cu_seqlens[document], end = in.cu_seqlens[document + 1];
  const int64_t chunks = (end - begin + kRows - 1) / kRows;
  float* const first =
      states + begin / kRows * per_slot + element;  // the state before chunk c has slot c - 1 from here
  const float* const grown = growth + (begin / kRows + document) * in.heads + head;
  if constexpr (kGradient) {
    for (int64_t c = chunks - 2; c > 0; --c) {
      first[(c - 1) * per_slot] = fmaf(grown[c * in.heads], first[c * per_slot], first[(c - 1) * per_slot]);
    }
  } else {
    for (int64_t c = 1; c + 1 < chunks; ++c) {
      first[c * per_slot] = fmaf(grown[c * in.heads], first[(c - 1) * per_slot], first[c * per_slot]);
    }
  }
}

/// The outputs of one chunk and block of heads.
template <class T>
__global__ void __launch_bounds__(kSsdThreads) outputs_kernel(const SsdArguments<T> in, const float* states, T* out) {
  constexpr int kRows = kSsdRows<T>, kPitch = kRows + 1;
  extern __shared__ __align__(16) char memory[];
  __shared__ SsdTokens<kRows> tokens;
  const SsdPlace place = in.place(blockIdx.x);
  if (place.rows == 0) return;
  const int n = place.rows, group = static_cast<int>(blockIdx.y) / in.blocks, of_group = in.heads / in.groups;
  const int begin = static_cast<int>(blockIdx.y) % in.blocks * static_cast<int>(kSsdHeadBlock);
  const int end = min(begin + static_cast<int>(kSsdHeadBlock), of_group);
  const int key_pitch = ssd_pitch<T>(in.size), value_pitch = ssd_pitch<T>(in.dim);
  float* const products = reinterpret_cast<float*>(memory);
  float* const p = products + kRows * kPitch;
  T* const b = reinterpret_cast<T*>(p + kRows * kPitch);
  T* const c = b + kRows * key_pitch;
  T* const x = c + kRows * key_pitch;
  load_ssd_rows(in.xbc + in.b(place.row, group), in.width, n, in.size, b);
  load_ssd_rows(in.xbc + in.c(place.row, group), in.width, n, in.size, c);
  __syncthreads();
  ssd_elements<T>(
      n, n, in.size, [&](int i, int k) { return c[i * key_pitch + k]; },
      [&](int k, int j) { return b[j * key_pitch + k]; },
      [&](int i, int j, float sum) { products[i * kPitch + j] = sum; });
  for (int head = group * of_group + begin; head < group * of_group + end; ++head) {
    tokens.load(in, place, head);
    load_ssd_rows(in.xbc + in.x(place.row, head), in.width, n, in.dim, x);
    for (int at = static_cast<int>(threadIdx.x); at < n * n; at += kSsdThreads) {
      const int i = at / n, j = at % n;
      p[i * kPitch + j] = j <= i ? products[i * kPitch + j] * tokens.decay(i, j) * tokens.delta[j] : 0.0f;
    }
    __syncthreads();
    const float* const state = place.first() ? nullptr : states + in.state(place.after - 1, head);
    const float skip = in.d.at(head);
    ssd_elements<T>(
        n, in.dim, state == nullptr ? n : n + in.size,
        [&](int i, int k) { return k < n ? p[i * kPitch + k] : tokens.grown[i] * to_float(c[i * key_pitch + k - n]); },
        [&](int k, int j) { return k < n ? to_float(x[k * value_pitch + j]) : state[(k - n) * in.dim + j]; },
        [&](int i, int j, float sum) {
          const float total = fmaf(skip, to_float(x[i * value_pitch + j]), sum);
          out[in.output(place.row + i, head) + j] = from_float<T>(total);
        });
  }
}

constexpr int kWarps = 4, kColumns = 4, kStateRows = static_cast<int>(kMaxSsdState) / 32;

/// A warp has kColumns columns of one sequence's and head's state; lane l holds their rows l + 32 r, r < kStateRows.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    recurrence_kernel(const SsdArguments<T> in, float* states, const int32_t* lengths, T* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32, parts = (in.dim + kColumns - 1) / kColumns;
  int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int first = static_cast<int>(item % parts) * kColumns;
  item /= parts;
  const int head = static_cast<int>(item % in.heads), document = static_cast<int>(item / in.heads);
  if (document >= in.documents) return;
  const int64_t begin = in.cu_seqlens[document], end = in.cu_seqlens[document + 1];
  if (begin == end) return;
  const int group = in.group_of(head), columns = min(kColumns, in.dim - first);
  const auto has = [&](int r) { return lane + 32 * r < in.size; };
  float* const state = states + item * in.size * in.dim + first;
  float s[kStateRows][kColumns] = {};
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (lengths[document] > 0 && has(r) && c < columns) s[r][c] = state[(lane + 32 * r) * in.dim + c];
    }
  }
  const float skip = in.d.at(head);
  for (int64_t token = begin; token < end; ++token) {
    const SsdStep step = in.step(token, head);
    const float kept = expf(step.g);
    float x[kColumns] = {}, read[kColumns] = {};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c < columns) x[c] = to_float(in.xbc[in.x(token, head) + first + c]);
    }
#pragma unroll
    for (int r = 0; r < kStateRows; ++r) {
      if (!has(r)) continue;
      const float added = step.delta * to_float(in.xbc[in.b(token, group) + lane + 32 * r]);
      const float asked = to_float(in.xbc[in.c(token, group) + lane + 32 * r]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        s[r][c] = fmaf(kept, s[r][c], added * x[c]);
        read[c] = fmaf(asked, s[r][c], read[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float total = fmaf(skip, x[c], warp_sum(read[c]));
      if (lane == c && c < columns) out[in.output(token, head) + first + c] = from_float<T>(total);
    }
  }
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (has(r) && c < columns) state[(lane + 32 * r) * in.dim + c] = s[r][c];
    }
  }
}

template <class T>
void launch_recurrence(const Context& context, const SsdScanArgs& args) {
  const int64_t parts = (args.heads.head_dim + kColumns - 1) / kColumns;
  const unsigned blocks = blocks_for(args.sequences.num_documents * args.heads.num_heads * parts, kWarps);
  recurrence_kernel<T>
      <<<blocks, 32 * kWarps, 0, stream_of(context)>>>(SsdArguments<T>(args), elements<float>(args.state.s),
                                                       elements<int32_t>(args.state.lengths), elements<T>(args.out));
  check_launch("continuing the state-space scan");
}

template <class T>
void launch_outputs(const Context& context, const SsdScanArgs& args, const SsdGeneralScratch& scratch) {
  constexpr int kRows = kSsdRows<T>;
  const SsdHeads& heads = args.heads;
  const size_t keys = kRows * static_cast<size_t>(ssd_pitch<T>(static_cast<int>(heads.state_size))) * sizeof(T);
  const size_t values = kRows * static_cast<size_t>(ssd_pitch<T>(static_cast<int>(heads.head_dim))) * sizeof(T);
  const size_t shared = 2 * kRows * (kRows + 1) * sizeof(float) + 2 * keys + values;
  allow_shared_memory(&outputs_kernel<T>, shared);
  const dim3 grid(static_cast<unsigned>(ssd_items(args)), static_cast<unsigned>(heads.num_groups * heads.blocks()));
  outputs_kernel<T><<<grid, kSsdThreads, shared, stream_of(context)>>>(
      SsdArguments<T>(args), elements<float>(scratch.states), elements<T>(args.out));
  check_launch("scanning states");
}

/// States from all chunks' additions, or with kGradient their gradients.
template <class T, bool kGradient>
void launch_states(const Context& context, const SsdScanArgs& args, const Tensor& dout,
                   const SsdGeneralScratch& scratch) {
  constexpr int kRows = kSsdRows<T>;
  const SsdHeads& heads = args.heads;
  const Tensor& states = kGradient ? scratch.dstates : scratch.states;
  if (states.numel() == 0) return;
  const int widths = ssd_pitch<T>(static_cast<int>(heads.state_size)) + ssd_pitch<T>(static_cast<int>(heads.head_dim));
  const SsdArguments<T> in(args);
  const dim3 grid(static_cast<unsigned>(ssd_items(args)), static_cast<unsigned>(heads.num_heads));
  additions_kernel<T, kGradient>
      <<<grid, kSsdThreads, kRows* static_cast<size_t>(widths) * sizeof(T), stream_of(context)>>>(
          in, elements<T>(dout), elements<float>(states), elements<float>(scratch.growth));
  check_launch("computing what chunks add to states");
  const dim3 carry(blocks_for(heads.inner() * heads.state_size, kSsdThreads),
                   static_cast<unsigned>(args.sequences.num_documents));
  carry_kernel<T, kGradient>
      <<<carry, kSsdThreads, 0, stream_of(context)>>>(in, elements<float>(states), elements<float>(scratch.growth));
  check_launch("carrying states");
}

}  // namespace

void find_ssd_states(const Context& context, const SsdScanArgs& args, const SsdGeneralScratch& scratch) {
  cuda::dispatch_float(args.xbc.dtype,
                       [&](auto element) { launch_states<decltype(element), false>(context, args, {}, scratch); });
}

void find_ssd_state_gradients(const Context& context, const SsdScanArgs& args, const Tensor& dout,
                              const SsdGeneralScratch& scratch) {
  cuda::dispatch_float(args.xbc.dtype,
                       [&](auto element) { launch_states<decltype(element), true>(context, args, dout, scratch); });
}

void continue_ssd_states(const Context& context, const SsdScanArgs& args) {
  if (context.dry() || args.xbc.shape[0] == 0) return;
  cuda::dispatch_float(args.xbc.dtype, [&](auto element) { launch_recurrence<decltype(element)>(context, args); });
}

void ssd_scan_general(const Context& context, const SsdScanArgs& args, const SsdGeneralScratch& scratch) {
  find_ssd_states(context, args, scratch);
  cuda::dispatch_float(args.xbc.dtype,
                       [&](auto element) { launch_outputs<decltype(element)>(context, args, scratch); });
}

}  // namespace hone::cuda
