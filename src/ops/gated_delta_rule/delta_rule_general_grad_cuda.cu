// The gradients of the gated delta rule in float32: a CTA has one document and one key head at a time, with the value
// heads that share it, and its own scratch. It processes the chunks forward for their first states, then backward;
// every sum has one owner and one order.
#include <algorithm>

#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "ops/gated_delta_rule/delta_rule_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 256;

/// The working memory of a CTA; matrices [tokens, tokens] have rows of kDeltaRows.
struct Workspace {
  float *q, *k, *dq, *dk, *to_keys;  // [64, Dk], normalised
  float *v, *fresh, *dout, *dfresh;  // [64, Dv]
  float *decay, *b, *p, *dp, *da;    // [64, 64]
  float* dstates;                    // [group, Dk, Dv]

  static int64_t floats(const DeltaHeads& heads) {
    return kDeltaChunk * (5 * heads.key_dim + 4 * heads.value_dim + 5 * kDeltaChunk) +
           heads.group() * heads.key_dim * heads.value_dim;
  }
  __device__ Workspace(float* next, int key_dim, int value_dim) {
    const auto take = [&](float*& pointer, int width) {
      pointer = next;
      next += kDeltaRows * width;
    };
    for (float** keys : {&q, &k, &dq, &dk, &to_keys}) take(*keys, key_dim);
    for (float** values : {&v, &fresh, &dout, &dfresh}) take(*values, value_dim);
    for (float** pairs : {&decay, &b, &p, &dp, &da}) take(*pairs, kDeltaRows);
    dstates = next;
  }
};

/// Scalars of the tokens of a chunk, in shared memory.
struct Tokens {
  float q_inverse[kDeltaRows], k_inverse[kDeltaRows];
  float beta[kDeltaRows], grown[kDeltaRows], to_end[kDeltaRows];
  float dbeta[kDeltaRows];
  double g_sum[kDeltaRows];   // a decay is the exponential of a difference of these
  double dg_sum[kDeltaRows];  // differences of larger sums if the decay is strong
  double kept[kThreads];
};

/// Calls f(row, column) for the elements that this thread owns; a barrier follows.
template <class F>
__device__ void for_elements(int rows, int columns, const F& f) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += kThreads) f(i / columns, i % columns);
  __syncthreads();
}

/// Σ_{i < n} a(i) b(i)
template <class A, class B>
__device__ float sum_over(int n, const A& a, const B& b) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum = fmaf(a(i), b(i), sum);
  return sum;
}

template <class T>
class Backward {
 public:
  __device__ Backward(const DeltaInputs<T>& in, const DeltaGradients<T>& out, float* states, float* memory,
                      Tokens& tokens)
      : in_(in),
        out_(out),
        states_(states),
        w_(memory, in.key_dim, in.value_dim),
        t_(tokens),
        dk_(in.key_dim),
        dv_(in.value_dim) {}

  __device__ void run(int document, int key_head) {
    const int64_t begin = in_.cu_seqlens[document], end = in_.cu_seqlens[document + 1];
    const int group = in_.group(), chunks = static_cast<int>((end - begin + kDeltaRows - 1) / kDeltaRows);
    first_slot_ = begin / kDeltaRows;
    for (int i = static_cast<int>(threadIdx.x); i < group; i += kThreads) {
      const int64_t at = int64_t{document} * in_.value_heads + key_head * group + i;
      if (out_.a_log != nullptr) out_.a_log[at] = 0.0f;
      if (out_.dt_bias != nullptr) out_.dt_bias[at] = 0.0f;
    }
    __syncthreads();
    for (int c = 0; c + 1 < chunks; ++c) {
      load_keys(begin + c * kDeltaRows, kDeltaRows, key_head);
      for (int i = 0; i < group; ++i) {
        const int head = key_head * group + i;
        load_chunk(begin + c * kDeltaRows, kDeltaRows, head, c > 0 ? state(head, c) : nullptr);
        advance(c > 0 ? state(head, c) : nullptr, state(head, c + 1));
      }
    }
    for (int c = chunks - 1; c >= 0; --c) {
      const int64_t row = begin + c * kDeltaRows;
      const int n = static_cast<int>(min(end - row, int64_t{kDeltaRows}));
      load_keys(row, n, key_head);
      for_elements(n, dk_, [&](int i, int d) { w_.dq[i * dk_ + d] = w_.dk[i * dk_ + d] = 0.0f; });
      for (int i = 0; i < group; ++i) {
        const int head = key_head * group + i;
        float* dstate = w_.dstates + static_cast<int64_t>(i) * dk_ * dv_;
        const float* before = c > 0 ? state(head, c) : nullptr;
        load_chunk(row, n, head, before);
        differentiate(row, head, before, c + 1 < chunks ? dstate : nullptr, dstate, document);
      }
      store_keys(row, key_head);
    }
  }

 private:
  /// Slot of value head `head` before chunk c > 0 of the document: chunks of all documents except their first have
  /// different slots.
  __device__ float* state(int head, int c) const {
    return states_ + ((first_slot_ + c - 1) * in_.value_heads + head) * dk_ * dv_;
  }

  __device__ void load_keys(int64_t row, int n, int key_head) {
    n_ = n;
    const float length = rsqrtf(static_cast<float>(dk_));
    for (int i = static_cast<int>(threadIdx.x) / 32; i < n; i += kThreads / 32) {
      const T* q = in_.qkv + in_.query(row + i, key_head);
      const T* k = in_.qkv + in_.key(row + i, key_head);
      float qq = 0.0f, kk = 0.0f;
      for (int d = static_cast<int>(threadIdx.x) % 32; d < dk_; d += 32) {
        qq = fmaf(to_float(q[d]), to_float(q[d]), qq);
        kk = fmaf(to_float(k[d]), to_float(k[d]), kk);
      }
      qq = rsqrtf(warp_sum(qq) + kDeltaNormEps);
      kk = rsqrtf(warp_sum(kk) + kDeltaNormEps);
      for (int d = static_cast<int>(threadIdx.x) % 32; d < dk_; d += 32) {
        w_.q[i * dk_ + d] = to_float(q[d]) * qq * length;
        w_.k[i * dk_ + d] = to_float(k[d]) * kk;
      }
      if (threadIdx.x % 32 == 0) t_.q_inverse[i] = qq, t_.k_inverse[i] = kk;
    }
    __syncthreads();
  }

  /// As DeltaChunk::load() of the CPU.
  __device__ void load_chunk(int64_t row, int n, int head, const float* before) {
    if (threadIdx.x == 0) {
      double sum = 0.0;
      for (int i = 0; i < n; ++i) {
        const DeltaGate gate = in_.gate(row + i, head);
        t_.beta[i] = gate.beta;
        t_.g_sum[i] = sum += static_cast<double>(gate.g);
        t_.grown[i] = expf(static_cast<float>(sum));
        t_.dbeta[i] = 0.0f;
        t_.dg_sum[i] = 0.0;
      }
      for (int i = 0; i < n; ++i) t_.to_end[i] = expf(static_cast<float>(sum - t_.g_sum[i]));
    }
    __syncthreads();
    for_elements(n, n, [&](int i, int j) {
      const float decay = j <= i ? expf(static_cast<float>(t_.g_sum[i] - t_.g_sum[j])) : 0.0f;
      const float product = sum_over(dk_, at(w_.k + i * dk_), at(w_.k + j * dk_));
      w_.decay[i * kDeltaRows + j] = decay;
      w_.b[i * kDeltaRows + j] = j < i ? product * decay : 0.0f;
    });
    for (int c = static_cast<int>(threadIdx.x); c < dv_; c += kThreads) {
      for (int i = 0; i < n; ++i) {
        const float v = to_float(in_.qkv[in_.value(row + i, head) + c]);
        float known = 0.0f;
        if (before != nullptr) {
          known = t_.grown[i] * sum_over(dk_, at(w_.k + i * dk_), at(before + c, dv_));
        }
        float sum = t_.beta[i] * (v - known);
        for (int j = 0; j < i; ++j) {
          sum = fmaf(-t_.beta[i] * w_.b[i * kDeltaRows + j], w_.fresh[j * dv_ + c], sum);
        }
        w_.v[i * dv_ + c] = v;
        w_.fresh[i * dv_ + c] = sum;
      }
    }
    __syncthreads();
  }

  __device__ void advance(const float* before, float* after) {
    for_elements(dk_, dv_, [&](int d, int c) {
      float sum = before == nullptr ? 0.0f : t_.grown[n_ - 1] * before[d * dv_ + c];
      for (int i = 0; i < n_; ++i) sum = fmaf(t_.to_end[i] * w_.k[i * dk_ + d], w_.fresh[i * dv_ + c], sum);
      after[d * dv_ + c] = sum;
    });
  }

  /// `behind` is the gradient of the state after the chunk, null for zeros; `dstate` becomes that of the state before.
  __device__ void differentiate(int64_t row, int head, const float* before, const float* behind, float* dstate,
                                int document) {
    for_elements(n_, dv_,
                 [&](int i, int c) { w_.dout[i * dv_ + c] = to_float(out_.dout[in_.output(row + i, head) + c]); });
    for_elements(n_, n_, [&](int i, int j) {
      const float product = sum_over(dk_, at(w_.q + i * dk_), at(w_.k + j * dk_));
      w_.p[i * kDeltaRows + j] = product * w_.decay[i * kDeltaRows + j];
    });
    differentiate_fresh(behind);
    differentiate_scores();
    differentiate_values(row, head);
    if (behind != nullptr) differentiate_update(before, behind);
    if (before != nullptr) differentiate_reads(before, behind, dstate);
    if (threadIdx.x == 0) store_gates(row, head, document);
    __syncthreads();
  }

  __device__ void differentiate_fresh(const float* behind) {
    for (int c = static_cast<int>(threadIdx.x); c < dv_; c += kThreads) {
      for (int i = n_ - 1; i >= 0; --i) {
        float sum = 0.0f;
        if (behind != nullptr) sum = t_.to_end[i] * sum_over(dk_, at(w_.k + i * dk_), at(behind + c, dv_));
        for (int j = i; j < n_; ++j) sum = fmaf(w_.p[j * kDeltaRows + i], w_.dout[j * dv_ + c], sum);
        for (int j = i + 1; j < n_; ++j) {
          sum = fmaf(-t_.beta[j] * w_.b[j * kDeltaRows + i], w_.dfresh[j * dv_ + c], sum);
        }
        w_.dfresh[i * dv_ + c] = sum;
      }
    }
    __syncthreads();
    for_elements(n_, n_, [&](int i, int j) {
      const int pair = i * kDeltaRows + j;
      w_.dp[pair] = j <= i ? sum_over(dv_, at(w_.dout + i * dv_), at(w_.fresh + j * dv_)) : 0.0f;
      w_.da[pair] = j < i ? -sum_over(dv_, at(w_.dfresh + i * dv_), at(w_.fresh + j * dv_)) : 0.0f;
    });
  }

  __device__ void differentiate_scores() {
    const auto change = [&](int i, int j) {  // gradient of G_i − G_j
      const int pair = i * kDeltaRows + j;
      return static_cast<double>(w_.dp[pair] * w_.p[pair] + t_.beta[i] * w_.da[pair] * w_.b[pair]);
    };
    for (int i = static_cast<int>(threadIdx.x); i < n_; i += kThreads) {
      for (int j = 0; j < i; ++j) {
        t_.dbeta[i] = fmaf(w_.da[i * kDeltaRows + j], w_.b[i * kDeltaRows + j], t_.dbeta[i]);
        t_.dg_sum[i] += change(i, j);
      }
      for (int j = i + 1; j < n_; ++j) t_.dg_sum[i] -= change(j, i);
    }
    __syncthreads();
    for_elements(n_, n_, [&](int i, int j) {
      const int pair = i * kDeltaRows + j;
      w_.dp[pair] *= w_.decay[pair];
      w_.da[pair] *= t_.beta[i] * w_.decay[pair];
    });
    for_elements(n_, dk_, [&](int i, int d) {
      float dq = 0.0f, dk = 0.0f;
      for (int j = 0; j <= i; ++j) {
        dq = fmaf(w_.dp[i * kDeltaRows + j], w_.k[j * dk_ + d], dq);
        dk = fmaf(w_.da[i * kDeltaRows + j], w_.k[j * dk_ + d], dk);
      }
      for (int j = i; j < n_; ++j) {
        dk = fmaf(w_.dp[j * kDeltaRows + i], w_.q[j * dk_ + d], dk);
        dk = fmaf(w_.da[j * kDeltaRows + i], w_.k[j * dk_ + d], dk);
      }
      w_.dq[i * dk_ + d] += dq;
      w_.dk[i * dk_ + d] += dk;
    });
  }

  __device__ void differentiate_values(int64_t row, int head) {
    for (int i = static_cast<int>(threadIdx.x); i < n_; i += kThreads) {
      t_.dbeta[i] += sum_over(dv_, at(w_.dfresh + i * dv_), at(w_.v + i * dv_));
    }
    for_elements(n_, dv_, [&](int i, int c) {
      out_.store(out_.dqkv, in_.value(row + i, head) + c, t_.beta[i] * w_.dfresh[i * dv_ + c], out_.add_qkv);
    });
  }

  __device__ void differentiate_update(const float* before, const float* behind) {
    for_elements(n_, dk_, [&](int i, int d) {
      const float sum = t_.to_end[i] * sum_over(dv_, at(w_.fresh + i * dv_), at(behind + d * dv_));
      w_.to_keys[i * dk_ + d] = sum;
      w_.dk[i * dk_ + d] += sum;
    });
    double kept = 0.0;
    for (int i = static_cast<int>(threadIdx.x); before != nullptr && i < dk_ * dv_; i += kThreads) {
      kept += static_cast<double>(before[i] * behind[i]);
    }
    t_.kept[threadIdx.x] = kept;
    __syncthreads();
    if (threadIdx.x == 0) {
      double last = 0.0;
      for (const double part : t_.kept) last += part;
      last *= static_cast<double>(t_.grown[n_ - 1]);
      for (int i = 0; i < n_; ++i) {
        const double change = static_cast<double>(sum_over(dk_, at(w_.to_keys + i * dk_), at(w_.k + i * dk_)));
        t_.dg_sum[i] -= change;
        last += change;
      }
      t_.dg_sum[n_ - 1] += last;
    }
    __syncthreads();
  }

  __device__ void differentiate_reads(const float* before, const float* behind, float* dstate) {
    for_elements(dk_, dv_, [&](int d, int c) {
      float sum = behind == nullptr ? 0.0f : t_.grown[n_ - 1] * behind[d * dv_ + c];
      for (int i = 0; i < n_; ++i) {
        sum = fmaf(t_.grown[i] * w_.q[i * dk_ + d], w_.dout[i * dv_ + c], sum);
        sum = fmaf(-t_.grown[i] * t_.beta[i] * w_.k[i * dk_ + d], w_.dfresh[i * dv_ + c], sum);
      }
      dstate[d * dv_ + c] = sum;
    });
    for_elements(n_, dk_, [&](int i, int d) {
      const float sum = t_.grown[i] * sum_over(dv_, at(w_.dout + i * dv_), at(before + d * dv_));
      w_.dq[i * dk_ + d] += sum;
      w_.to_keys[i * dk_ + d] = sum;
    });
    for (int i = static_cast<int>(threadIdx.x); i < n_; i += kThreads) {
      t_.dg_sum[i] += static_cast<double>(sum_over(dk_, at(w_.to_keys + i * dk_), at(w_.q + i * dk_)));
    }
    __syncthreads();
    for_elements(n_, dk_, [&](int i, int d) {
      const float sum = -t_.grown[i] * sum_over(dv_, at(w_.dfresh + i * dv_), at(before + d * dv_));
      w_.dk[i * dk_ + d] += t_.beta[i] * sum;
      w_.to_keys[i * dk_ + d] = sum;
    });
    for (int i = static_cast<int>(threadIdx.x); i < n_; i += kThreads) {
      const float read = sum_over(dk_, at(w_.to_keys + i * dk_), at(w_.k + i * dk_));
      t_.dbeta[i] += read;
      t_.dg_sum[i] += static_cast<double>(t_.beta[i] * read);
    }
    __syncthreads();
  }

  /// Called by one thread.
  __device__ void store_gates(int64_t row, int head, int document) {
    double dg = 0.0;
    float da_log = 0.0f, ddt_bias = 0.0f;
    for (int i = n_ - 1; i >= 0; --i) {
      dg += t_.dg_sum[i];
      const DeltaGate gate = in_.gate(row + i, head);
      const float da = static_cast<float>(dg) * gate.dg_da;
      const int64_t at = (row + i) * in_.value_heads + head;
      out_.store(out_.da, at, da, out_.add_a);
      out_.store(out_.db, at, t_.dbeta[i] * gate.beta * (1.0f - gate.beta), out_.add_b);
      da_log += static_cast<float>(dg) * gate.g;
      ddt_bias += da;
    }
    const int64_t at = int64_t{document} * in_.value_heads + head;
    if (out_.a_log != nullptr) out_.a_log[at] += da_log;
    if (out_.dt_bias != nullptr) out_.dt_bias[at] += ddt_bias;
  }

  /// Backward of the norms of queries and keys, one warp per row.
  __device__ void store_keys(int64_t row, int key_head) {
    const float length = rsqrtf(static_cast<float>(dk_));
    for (int i = static_cast<int>(threadIdx.x) / 32; i < n_; i += kThreads / 32) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      float q_along = 0.0f, k_along = 0.0f;
      for (int d = i * dk_ + lane; d < (i + 1) * dk_; d += 32) {
        q_along = fmaf(w_.dq[d], w_.q[d], q_along);
        k_along = fmaf(w_.dk[d], w_.k[d], k_along);
      }
      q_along = warp_sum(q_along) / (length * length);
      k_along = warp_sum(k_along);
      for (int d = lane; d < dk_; d += 32) {
        const int at = i * dk_ + d;
        out_.store(out_.dqkv, in_.query(row + i, key_head) + d,
                   t_.q_inverse[i] * length * (w_.dq[at] - q_along * w_.q[at]), out_.add_qkv);
        out_.store(out_.dqkv, in_.key(row + i, key_head) + d, t_.k_inverse[i] * (w_.dk[at] - k_along * w_.k[at]),
                   out_.add_qkv);
      }
    }
    __syncthreads();
  }

  /// Elements `stride` apart.
  struct Strided {
    const float* first;
    int stride;
    __device__ float operator()(int i) const { return first[static_cast<int64_t>(i) * stride]; }
  };
  __device__ static Strided at(const float* first, int stride = 1) { return {first, stride}; }

  const DeltaInputs<T>& in_;
  const DeltaGradients<T>& out_;
  float* states_;
  Workspace w_;
  Tokens& t_;
  int dk_, dv_, n_ = 0;
  int64_t first_slot_ = 0;
};

template <class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(const DeltaInputs<T> in, const DeltaGradients<T> out,
                                                            float* states, float* memory, int64_t memory_floats) {
  __shared__ Tokens tokens;
  Backward<T> backward(in, out, states, memory + blockIdx.x * memory_floats, tokens);
  for (int64_t item = blockIdx.x; item < int64_t{in.documents} * in.key_heads; item += gridDim.x) {
    backward.run(static_cast<int>(item / in.key_heads), static_cast<int>(item % in.key_heads));
  }
}

}  // namespace

void delta_rule_general_grad(const Context& context, const DeltaRuleGradArgs& args) {
  const DeltaHeads& heads = args.forward.heads;
  const int64_t documents = args.forward.sequences.num_documents, items = documents * heads.num_key_heads;
  const int64_t slots = args.forward.qkv.shape[0] / kDeltaChunk, blocks = std::min(items, kMaxBlocks);
  ArenaScope memory(context.scratch());
  const Tensor states = memory.take({slots, heads.num_value_heads, heads.key_dim, heads.value_dim}, DType::kF32);
  const Tensor workspace = memory.take({blocks, Workspace::floats(heads)}, DType::kF32);
  Tensor a_log_parts, dt_bias_parts;
  if (args.da_log.wanted()) a_log_parts = memory.take({documents, heads.num_value_heads}, DType::kF32);
  if (args.ddt_bias.wanted()) dt_bias_parts = memory.take({documents, heads.num_value_heads}, DType::kF32);
  if (context.dry()) return;
  if (items > 0) {
    cuda::dispatch_float(args.forward.qkv.dtype, [&](auto element) {
      using T = decltype(element);
      backward_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(context)>>>(
          DeltaInputs<T>(args.forward), DeltaGradients<T>(args, a_log_parts, dt_bias_parts), elements<float>(states),
          elements<float>(workspace), workspace.shape[1]);
    });
    check_launch("differentiating the delta rule");
  }
  if (args.da_log.wanted()) sum_chunks(context, a_log_parts, {args.da_log});
  if (args.ddt_bias.wanted()) sum_chunks(context, dt_bias_parts, {args.ddt_bias});
}

}  // namespace hone::cuda
