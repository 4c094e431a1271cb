// A task has one document and one key head with the value heads that share it: it processes the chunks forward for
// their first states, then backward, one value head after another, so every sum has one owner and one order.
#include <algorithm>
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/gated_delta_rule/delta_chunk_cpu.h"

namespace hone::cpu {

namespace {

struct GradSizes {
  DeltaRuleGradArgs args;
  int64_t max_chunks;  ///< chunks of a document
};

/// c [m, n] (+)= a b, rows of c `ldc` apart.
struct Product {
  int64_t m, n, k, ldc;
  void operator()(const MatrixView& a, const MatrixView& b, float* c, float beta,
                  const float* row_scale = nullptr) const {
    gemm_serial({.m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .ldc = ldc, .beta = beta, .row_scale = row_scale});
  }
};

/// Gradients of one chunk and value head before they reach the raw inputs. Those of G are float64: their sums are
/// differences of much larger ones if the decay is strong.
struct GateGradients {
  float beta[kDeltaChunk];
  double g_sum[kDeltaChunk];
};

class Backward {
 public:
  Backward(const GradSizes& sizes, FloatStack& memory)
      : args_(sizes.args),
        heads_(args_.forward.heads),
        max_chunks_(sizes.max_chunks),
        keys_(args_.forward, memory),
        chunk_(args_.forward, memory),
        states_(memory.take(heads_.group() * max_chunks_ * state_size())),
        dstate_(memory.take(heads_.group() * state_size())),
        dq_(memory.take(kDeltaChunk * heads_.key_dim)),
        dk_(memory.take(kDeltaChunk * heads_.key_dim)),
        to_keys_(memory.take(kDeltaChunk * heads_.key_dim)),
        dout_(memory.take(kDeltaChunk * heads_.value_dim)),
        dfresh_(memory.take(kDeltaChunk * heads_.value_dim)),
        scaled_(memory.take(kDeltaChunk * heads_.value_dim)),
        p_(memory.take(kDeltaChunk * kDeltaChunk)),
        dp_(memory.take(kDeltaChunk * kDeltaChunk)),
        da_(memory.take(kDeltaChunk * kDeltaChunk)),
        sums_(memory.take(2 * heads_.group())) {}

  /// `sums` [2, Hv] receives this document's parts of da_log and ddt_bias; may be null.
  void run(int64_t key_head, int64_t begin, int64_t end, float* sums) {
    const int64_t chunks = (end - begin + kDeltaChunk - 1) / kDeltaChunk, first_head = key_head * heads_.group();
    find_states(key_head, begin, end, chunks);
    std::fill_n(sums_, 2 * heads_.group(), 0.0f);
    for (int64_t c = chunks - 1; c >= 0; --c) {
      const int64_t row = begin + c * kDeltaChunk, n = std::min(kDeltaChunk, end - row);
      keys_.load(args_.forward, key_head, row, n);
      std::fill_n(dq_, n * heads_.key_dim, 0.0f);
      std::fill_n(dk_, n * heads_.key_dim, 0.0f);
      for (int64_t i = 0; i < heads_.group(); ++i) {
        differentiate(i, first_head + i, row, n, c > 0 ? state(i, c) : nullptr, c + 1 < chunks);
      }
      store_keys(key_head, row, n);
    }
    if (sums == nullptr) return;
    for (int64_t i = 0; i < heads_.group(); ++i) {
      sums[first_head + i] = sums_[i];
      sums[heads_.num_value_heads + first_head + i] = sums_[heads_.group() + i];
    }
  }

 private:
  int64_t state_size() const { return heads_.key_dim * heads_.value_dim; }
  /// The state of value head i of the group before chunk c.
  float* state(int64_t i, int64_t c) { return states_ + (i * max_chunks_ + c) * state_size(); }

  void find_states(int64_t key_head, int64_t begin, int64_t end, int64_t chunks) {
    for (int64_t c = 0; c + 1 < chunks; ++c) {
      const int64_t row = begin + c * kDeltaChunk, n = std::min(kDeltaChunk, end - row);
      keys_.load(args_.forward, key_head, row, n);
      for (int64_t i = 0; i < heads_.group(); ++i) {
        float* next = state(i, c + 1);
        if (c > 0) std::copy_n(state(i, c), state_size(), next);
        chunk_.load(args_.forward, keys_, key_head * heads_.group() + i, row, n, c > 0 ? state(i, c) : nullptr);
        chunk_.advance(args_.forward, keys_, next, c == 0, scaled_);
      }
    }
  }

  /// Backward of one chunk of value head `head`, the i-th of the group. `before` is its state before the chunk, null
  /// for zeros; `continues`: dstate_ holds the gradient of the state after it.
  void differentiate(int64_t i, int64_t head, int64_t row, int64_t n, const float* before, bool continues) {
    GateGradients gates = {};
    float* dstate = dstate_ + i * state_size();
    chunk_.load(args_.forward, keys_, head, row, n, before);
    chunk_.scores(args_.forward, keys_, p_);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t dim = heads_.value_dim, at = ((row + r) * heads_.num_value_heads + head) * dim;
      const float* values = load_block(row_math(), args_.dout, at, dout_ + r * dim, dim);
      if (values != dout_ + r * dim) std::copy_n(values, dim, dout_ + r * dim);
    }
    differentiate_fresh(dstate, continues);
    differentiate_scores(gates);
    differentiate_values(head, row, gates);
    if (continues) differentiate_update(dstate, before, gates);
    differentiate_reads(dstate, before, continues, gates);
    store_gates(i, head, row, gates);
  }

  /// dfresh_ ← the gradient of R, by backward of V; dp_ and da_ ← those of P and A.
  void differentiate_fresh(const float* dstate, bool continues) {
    const int64_t n = chunk_.n, dim = heads_.value_dim;
    const MatrixView dout = rows_of(dout_, dim), fresh = rows_of(chunk_.fresh, dim), dfresh = rows_of(dfresh_, dim);
    Product{n, dim, n, dim}(transposed(rows_of(p_, kDeltaChunk)), dout, dfresh_, 0.0f);
    if (continues) {
      Product{n, dim, heads_.key_dim, dim}(rows_of(keys_.k, heads_.key_dim), rows_of(dstate, dim), dfresh_, 1.0f,
                                           chunk_.to_end);
    }
    for (int64_t r = n - 2; r >= 0; --r) {  // (I + A)ᵀ dR = dV
      for (int64_t j = r + 1; j < n; ++j) {
        row_math().add_scaled(-chunk_.beta[j] * chunk_.b[j * kDeltaChunk + r], dfresh_ + j * dim, dfresh_ + r * dim,
                              dim);
      }
    }
    Product{n, n, dim, kDeltaChunk}(dout, transposed(fresh), dp_, 0.0f);
    Product{n, n, dim, kDeltaChunk}(dfresh, transposed(fresh), da_, 0.0f);  // times -1
  }

  /// Backward of P and A to queries, keys, β and G.
  void differentiate_scores(GateGradients& gates) {
    const int64_t n = chunk_.n, dim = heads_.key_dim;
    for (int64_t r = 0; r < n; ++r) {
      float* dp = dp_ + r * kDeltaChunk;
      float* da = da_ + r * kDeltaChunk;
      const float* decay = chunk_.decay + r * kDeltaChunk;
      for (int64_t j = 0; j < n; ++j) {
        if (j > r) {
          dp[j] = da[j] = 0.0f;
          continue;
        }
        float change = dp[j] * p_[r * kDeltaChunk + j];
        if (j < r) {
          const float gradient = -da[j] * chunk_.b[r * kDeltaChunk + j];
          gates.beta[r] += gradient;
          change += chunk_.beta[r] * gradient;
        }
        gates.g_sum[r] += static_cast<double>(change);
        gates.g_sum[j] -= static_cast<double>(change);
        dp[j] *= decay[j];
        da[j] = j < r ? -da[j] * chunk_.beta[r] * decay[j] : 0.0f;
      }
    }
    const MatrixView q = rows_of(keys_.q, dim), k = rows_of(keys_.k, dim);
    const MatrixView dp = rows_of(dp_, kDeltaChunk), da = rows_of(da_, kDeltaChunk);
    const Product product{n, dim, n, dim};
    product(dp, k, dq_, 1.0f);
    product(transposed(dp), q, dk_, 1.0f);
    product(da, k, dk_, 1.0f);
    product(transposed(da), k, dk_, 1.0f);
  }

  void differentiate_values(int64_t head, int64_t row, GateGradients& gates) {
    const RowMath& math = row_math();
    const int64_t dim = heads_.value_dim, values = 2 * heads_.num_key_heads * heads_.key_dim + head * dim;
    for (int64_t r = 0; r < chunk_.n; ++r) {
      gates.beta[r] += math.dot(dfresh_ + r * dim, chunk_.v + r * dim, dim);
      if (!args_.dqkv.wanted()) continue;
      math.scale(chunk_.beta[r], dfresh_ + r * dim, scaled_ + r * dim, dim);
      store_block(math, scaled_ + r * dim, args_.dqkv, (row + r) * heads_.width() + values, dim);
    }
  }

  /// Backward of the chunk's additions to the state after it.
  void differentiate_update(const float* dstate, const float* before, GateGradients& gates) {
    const RowMath& math = row_math();
    const int64_t n = chunk_.n, dim = heads_.value_dim, key_dim = heads_.key_dim;
    Product{n, key_dim, dim, key_dim}(rows_of(chunk_.fresh, dim), transposed(rows_of(dstate, dim)), to_keys_, 0.0f,
                                      chunk_.to_end);
    for (int64_t r = 0; r < n; ++r) {
      math.add(dk_ + r * key_dim, to_keys_ + r * key_dim, dk_ + r * key_dim, key_dim);
      const float change = math.dot(to_keys_ + r * key_dim, keys_.k + r * key_dim, key_dim);
      gates.g_sum[r] -= change;
      gates.g_sum[n - 1] += change;
    }
    if (before == nullptr) return;
    float kept = 0;
    for (int64_t d = 0; d < key_dim; ++d) kept += math.dot(before + d * dim, dstate + d * dim, dim);
    gates.g_sum[n - 1] += chunk_.end_growth() * kept;
  }

  /// Backward of the chunk's reads of the state before it; dstate becomes that state's gradient.
  void differentiate_reads(float* dstate, const float* before, bool continues, GateGradients& gates) {
    if (before == nullptr) return;
    const RowMath& math = row_math();
    const int64_t n = chunk_.n, dim = heads_.value_dim, key_dim = heads_.key_dim;
    const MatrixView transposed_state = transposed(rows_of(before, dim));
    const Product through_state{n, key_dim, dim, key_dim}, to_state{key_dim, dim, n, dim};
    scale_rows(chunk_.grown, dout_, dout_, n, dim);
    through_state(rows_of(dout_, dim), transposed_state, to_keys_, 0.0f);
    for (int64_t r = 0; r < n; ++r) {
      math.add(dq_ + r * key_dim, to_keys_ + r * key_dim, dq_ + r * key_dim, key_dim);
      gates.g_sum[r] += math.dot(to_keys_ + r * key_dim, keys_.q + r * key_dim, key_dim);
    }
    to_state(transposed(rows_of(keys_.q, key_dim)), rows_of(dout_, dim), dstate,
             continues ? chunk_.end_growth() : 0.0f);
    float factor[kDeltaChunk];
    for (int64_t r = 0; r < n; ++r) factor[r] = -chunk_.grown[r];
    scale_rows(factor, dfresh_, dfresh_, n, dim);
    through_state(rows_of(dfresh_, dim), transposed_state, to_keys_, 0.0f);
    for (int64_t r = 0; r < n; ++r) {
      const float read = math.dot(to_keys_ + r * key_dim, keys_.k + r * key_dim, key_dim);
      gates.beta[r] += read;
      gates.g_sum[r] += chunk_.beta[r] * read;
      math.add_scaled(chunk_.beta[r], to_keys_ + r * key_dim, dk_ + r * key_dim, key_dim);
    }
    scale_rows(chunk_.beta, dfresh_, dfresh_, n, dim);
    to_state(transposed(rows_of(keys_.k, key_dim)), rows_of(dfresh_, dim), dstate, 1.0f);
  }

  void store_gates(int64_t i, int64_t head, int64_t row, const GateGradients& gates) {
    double dg_sum = 0;
    for (int64_t r = chunk_.n - 1; r >= 0; --r) {
      dg_sum += gates.g_sum[r];
      const auto dg = static_cast<float>(dg_sum);
      const DeltaGate gate = delta_gate(args_.forward, row + r, head);
      const int64_t at = (row + r) * heads_.num_value_heads + head;
      float da = dg * gate.dg_da, db = gates.beta[r] * gate.beta * (1.0f - gate.beta);
      sums_[i] += dg * gate.g;
      sums_[heads_.group() + i] += da;
      if (args_.da.wanted()) store_block(row_math(), &da, args_.da, at, 1);
      if (args_.db.wanted()) store_block(row_math(), &db, args_.db, at, 1);
    }
  }

  /// Backward of the norms of queries and keys.
  void store_keys(int64_t key_head, int64_t row, int64_t n) {
    if (!args_.dqkv.wanted()) return;
    const RowMath& math = row_math();
    const int64_t dim = heads_.key_dim;
    const float length_squared = 1.0f / static_cast<float>(dim);
    const auto store = [&](float* gradient, const float* unit, float inverse, float length2, int64_t at) {
      math.add_scaled(-math.dot(gradient, unit, dim) / length2, unit, gradient, dim);
      math.scale(inverse * std::sqrt(length2), gradient, gradient, dim);
      store_block(math, gradient, args_.dqkv, at, dim);
    };
    for (int64_t r = 0; r < n; ++r) {
      const int64_t at = (row + r) * heads_.width() + key_head * dim;
      store(dq_ + r * dim, keys_.q + r * dim, keys_.q_inverse[r], length_squared, at);
      store(dk_ + r * dim, keys_.k + r * dim, keys_.k_inverse[r], 1.0f, at + heads_.num_key_heads * dim);
    }
  }

  DeltaRuleGradArgs args_;
  DeltaHeads heads_;
  int64_t max_chunks_;
  DeltaKeys keys_;
  DeltaChunk chunk_;
  float *states_, *dstate_, *dq_, *dk_, *to_keys_, *dout_, *dfresh_, *scaled_, *p_, *dp_, *da_, *sums_;
};

/// dst = Σ over documents of partial [D, 2, Hv], in order.
void sum_documents(const Tensor& partial, int64_t part, const GradDest& dest) {
  if (!dest.wanted()) return;
  const int64_t documents = partial.shape[0], heads = partial.shape[2];
  for (int64_t head = 0; head < heads; ++head) {
    float sum = 0;
    for (int64_t n = 0; n < documents; ++n) sum += partial.as<float>()[(n * 2 + part) * heads + head];
    float& dst = dest.dst.as<float>()[head];
    dst = dest.beta != 0.0f ? dst + sum : sum;
  }
}

}  // namespace

void gated_delta_rule_grad(const Context& context, const DeltaRuleGradArgs& args) {
  const PackedSequences& sequences = args.forward.sequences;
  const int64_t heads = args.forward.heads.num_value_heads, documents = sequences.num_documents;
  const int64_t longest = std::min(sequences.max_seqlen, args.forward.qkv.shape[0]);
  const GradSizes sizes{args, (longest + kDeltaChunk - 1) / kDeltaChunk};
  const int64_t floats = workspace_floats<Backward>(sizes);
  ArenaScope memory(context.scratch());
  const Tensor scratch = memory.take({context.threads(), floats}, DType::kF32);
  Tensor partial;
  if (args.da_log.wanted() || args.ddt_bias.wanted()) partial = memory.take({documents, 2, heads}, DType::kF32);
  context.launch([args, sizes, scratch, partial, floats, heads, documents](ThreadPool& pool) {
    if (partial.defined()) std::fill_n(partial.as<float>(), partial.numel(), 0.0f);
    const int32_t* offsets = args.forward.sequences.cu_seqlens.as<int32_t>();
    const int64_t key_heads = args.forward.heads.num_key_heads;
    pool.parallel_for(documents * key_heads, [&](int64_t i, int thread) {
      const int64_t document = i / key_heads;
      if (offsets[document] == offsets[document + 1]) return;
      FloatStack stack(scratch.as<float>() + thread * floats);
      Backward(sizes, stack)
          .run(i % key_heads, offsets[document], offsets[document + 1],
               partial.defined() ? partial.as<float>() + document * 2 * heads : nullptr);
    });
    if (!partial.defined()) return;
    sum_documents(partial, 0, args.da_log);
    sum_documents(partial, 1, args.ddt_bias);
  });
}

}  // namespace hone::cpu
