// The gated delta rule token by token in float32, for any GPU, dtype and head size, and for generation from a state:
// the reference of the chunked kernels.
#include "ops/gated_delta_rule/delta_rule_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kWarps = 4, kColumns = 4;
constexpr int kMaxKeyDim = 256;

template <class T>
struct Recurrence {
  DeltaInputs<T> in;
  T* out;
  float* state;  // [N, Hv, Dk, Dv] or null
  const int32_t* lengths;
};

/// A warp has kColumns columns of one document's and head's state; lane l holds their rows l + 32 r, r < kRows.
template <class T, int kRows>
__global__ void __launch_bounds__(32 * kWarps) recurrence_kernel(const Recurrence<T> a) {
  const DeltaInputs<T>& in = a.in;
  const int lane = static_cast<int>(threadIdx.x) % 32, parts = (in.value_dim + kColumns - 1) / kColumns;
  int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int first = static_cast<int>(item % parts) * kColumns;
  item /= parts;
  const int head = static_cast<int>(item % in.value_heads), document = static_cast<int>(item / in.value_heads);
  if (document >= in.documents) return;
  const int64_t begin = in.cu_seqlens[document], end = in.cu_seqlens[document + 1];
  if (begin == end) return;
  const int key_head = head / in.group(), columns = min(kColumns, in.value_dim - first);
  const auto has = [&](int r) { return lane + 32 * r < in.key_dim; };

  float s[kRows][kColumns] = {};
  float* state = a.state == nullptr ? nullptr : a.state + item * in.key_dim * in.value_dim + first;
  if (state != nullptr && a.lengths[document] > 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (has(r) && c < columns) s[r][c] = state[(lane + 32 * r) * in.value_dim + c];
      }
    }
  }
  const float query_length = rsqrtf(static_cast<float>(in.key_dim));
  for (int64_t token = begin; token < end; ++token) {
    float q[kRows] = {}, k[kRows] = {}, v[kColumns] = {}, qq = 0.0f, kk = 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!has(r)) continue;
      q[r] = to_float(in.qkv[in.query(token, key_head) + lane + 32 * r]);
      k[r] = to_float(in.qkv[in.key(token, key_head) + lane + 32 * r]);
      qq = fmaf(q[r], q[r], qq);
      kk = fmaf(k[r], k[r], kk);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c < columns) v[c] = to_float(in.qkv[in.value(token, head) + first + c]);
    }
    const float q_scale = query_length * rsqrtf(warp_sum(qq) + kDeltaNormEps);
    const float k_scale = rsqrtf(warp_sum(kk) + kDeltaNormEps);
    const DeltaGate gate = in.gate(token, head);
    const float kept = expf(gate.g);
    float known[kColumns] = {}, read[kColumns] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      q[r] *= q_scale;
      k[r] *= k_scale;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        s[r][c] *= kept;
        known[c] = fmaf(s[r][c], k[r], known[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float delta = gate.beta * (v[c] - warp_sum(known[c]));
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        s[r][c] = fmaf(k[r], delta, s[r][c]);
        read[c] = fmaf(s[r][c], q[r], read[c]);
      }
      read[c] = warp_sum(read[c]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (lane == c && c < columns) a.out[in.output(token, head) + first + c] = from_float<T>(read[c]);
    }
  }
  if (state == nullptr) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (has(r) && c < columns) state[(lane + 32 * r) * in.value_dim + c] = s[r][c];
    }
  }
}

}  // namespace

void delta_rule_general(const Context& context, const DeltaRuleArgs& args) {
  HONE_ASSERT(args.heads.key_dim <= kMaxKeyDim);
  if (context.dry() || args.qkv.shape[0] == 0) return;
  cuda::dispatch_float(args.qkv.dtype, [&](auto element) {
    using T = decltype(element);
    const Recurrence<T> recurrence{.in = DeltaInputs<T>(args),
                                   .out = elements<T>(args.out),
                                   .state = elements<float>(args.state.s),
                                   .lengths = elements<int32_t>(args.state.lengths)};
    const int64_t parts = (args.heads.value_dim + kColumns - 1) / kColumns;
    const unsigned blocks = blocks_for(args.sequences.num_documents * args.heads.num_value_heads * parts, kWarps);
    const auto kernel = args.heads.key_dim <= 128 ? &recurrence_kernel<T, 4> : &recurrence_kernel<T, 8>;
    kernel<<<blocks, 32 * kWarps, 0, stream_of(context)>>>(recurrence);
  });
  check_launch("running the delta rule");
}

}  // namespace hone::cuda
