// Shared by the CUDA kernels of the gated delta rule. Included by *_cuda.cu only.
#pragma once

#include "ops/gated_delta_rule/gated_delta_rule.h"
#include "ops/rms_norm/norm_weight_cuda.h"

namespace hone::cuda {

inline constexpr int kDeltaRows = static_cast<int>(kDeltaChunk);
inline constexpr float kDeltaNormEps = 1e-6f;

/// β and g of one token and value head, and a derivative for their gradients.
struct DeltaGate {
  float beta, g;
  float dg_da;  ///< −exp(A_log) sigmoid(a + dt_bias)
};

/// The inputs as kernel arguments.
template <class T>
struct DeltaInputs {
  const T* qkv;
  const T *a, *b;
  NormWeight a_log, dt_bias;
  const int32_t* cu_seqlens;
  int documents, key_heads, value_heads, key_dim, value_dim;
  int64_t tokens, width;

  explicit DeltaInputs(const DeltaRuleArgs& args)
      : qkv(elements<T>(args.qkv)),
        a(elements<T>(args.a)),
        b(elements<T>(args.b)),
        a_log(args.a_log),
        dt_bias(args.dt_bias),
        cu_seqlens(elements<int32_t>(args.sequences.cu_seqlens)),
        documents(static_cast<int>(args.sequences.num_documents)),
        key_heads(static_cast<int>(args.heads.num_key_heads)),
        value_heads(static_cast<int>(args.heads.num_value_heads)),
        key_dim(static_cast<int>(args.heads.key_dim)),
        value_dim(static_cast<int>(args.heads.value_dim)),
        tokens(args.qkv.shape[0]),
        width(args.heads.width()) {}

#ifdef __CUDACC__
  __device__ int group() const { return value_heads / key_heads; }
  /// Offsets of a query, key and value in a row of qkv.
  __device__ int64_t query(int64_t token, int key_head) const { return token * width + key_head * key_dim; }
  __device__ int64_t key(int64_t token, int key_head) const { return query(token, key_heads + key_head); }
  __device__ int64_t value(int64_t token, int head) const {
    return token * width + 2 * key_heads * key_dim + head * value_dim;
  }
  /// Offset of a value head in [T, Hv·Dv].
  __device__ int64_t output(int64_t token, int head) const { return (token * value_heads + head) * value_dim; }

  __device__ DeltaGate gate(int64_t token, int head) const {
    const int64_t at = token * value_heads + head;
    const float x = to_float(a[at]) + dt_bias.at(head), rate = -expf(a_log.at(head));
    return {.beta = 1.0f / (1.0f + expf(-to_float(b[at]))),
            .g = rate * (x > 20.0f ? x : log1pf(expf(x))),
            .dg_da = rate / (1.0f + expf(-x))};
  }
#endif
};

/// Destinations of gradients.
template <class T>
struct DeltaGradients {
  const T* dout;
  T *dqkv, *da, *db;  ///< null: not wanted
  bool add_qkv, add_a, add_b;
  float *a_log, *dt_bias;  ///< partial sums, [parts, Hv], or null

  DeltaGradients(const DeltaRuleGradArgs& args, const Tensor& a_log_parts, const Tensor& dt_bias_parts)
      : dout(elements<T>(args.dout)),
        dqkv(elements<T>(args.dqkv.dst)),
        da(elements<T>(args.da.dst)),
        db(elements<T>(args.db.dst)),
        add_qkv(args.dqkv.beta != 0.0f),
        add_a(args.da.beta != 0.0f),
        add_b(args.db.beta != 0.0f),
        a_log(elements<float>(a_log_parts)),
        dt_bias(elements<float>(dt_bias_parts)) {}

#ifdef __CUDACC__
  __device__ static void store(T* to, int64_t at, float value, bool add) {
    if (to != nullptr) to[at] = from_float<T>(add ? value + to_float(to[at]) : value);
  }
#endif
};

/// Any sizes and dtypes: token by token, from a state or from zeros.
void delta_rule_general(const Context& context, const DeltaRuleArgs& args);
/// Any sizes and dtypes: chunk by chunk in float32.
void delta_rule_general_grad(const Context& context, const DeltaRuleGradArgs& args);

}  // namespace hone::cuda
