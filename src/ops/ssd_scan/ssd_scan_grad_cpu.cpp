// A task has one document and one block of heads: it processes the chunks forward for their first states, then
// backward, one head after another. The gradients of B and C are summed over the blocks of a group afterwards, so every
// sum has one owner and one order.
#include <algorithm>
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/ssd_scan/ssd_chunk_cpu.h"

namespace hone::cpu {

namespace {

/// c [m, n] (+)= a b, rows of c `ldc` apart.
struct Product {
  int64_t m, n, k, ldc;
  void operator()(const MatrixView& a, const MatrixView& b, float* c, float beta,
                  const float* row_scale = nullptr) const {
    gemm_serial({.m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .ldc = ldc, .beta = beta, .row_scale = row_scale});
  }
};

/// What tasks leave for the sums that follow them.
struct Shared {
  float* states;   ///< [slots, H, N, P]: a document's states before its second, third, … chunk
  float* keys;     ///< [blocks of a group, T, 2GN]: gradients of B and C
  float* weights;  ///< [documents, 3, H]: of a_log, dt_bias and d; or null
  int64_t tokens;
};

class Backward {
 public:
  Backward(const SsdHeads& heads, FloatStack& memory)
      : heads_(heads),
        keys_(heads, memory),
        chunk_(heads, memory),
        dstates_(memory.take(kSsdHeadBlock * state_size())),
        db_(memory.take(kSsdChunk * heads.state_size)),
        dc_(memory.take(kSsdChunk * heads.state_size)),
        to_keys_(memory.take(kSsdChunk * heads.state_size)),
        dout_(memory.take(kSsdChunk * heads.head_dim)),
        dv_(memory.take(kSsdChunk * heads.head_dim)),
        scaled_(memory.take(kSsdChunk * heads.head_dim)),
        dp_(memory.take(kSsdChunk * kSsdChunk)) {}

  void run(const SsdScanGradArgs& args, const Shared& shared, const SsdHeadBlock& block, int64_t document,
           int64_t begin, int64_t end) {
    const SsdScanArgs& forward = args.forward;
    const int64_t chunks = (end - begin + kSsdChunk - 1) / kSsdChunk, size = heads_.state_size;
    const auto state = [&](int64_t head, int64_t c) {
      return shared.states + ((begin / kSsdChunk + c - 1) * heads_.num_heads + head) * state_size();
    };
    for (int64_t c = 0; c + 1 < chunks; ++c) {
      keys_.load(forward, block.group, begin + c * kSsdChunk, kSsdChunk);
      for (int64_t i = 0; i < block.count; ++i) {
        float* next = state(block.first + i, c + 1);
        if (c > 0) std::copy_n(state(block.first + i, c), state_size(), next);
        chunk_.load(forward, keys_, block.first + i, begin + c * kSsdChunk, kSsdChunk);
        chunk_.advance(heads_, keys_, next, c == 0, scaled_);
      }
    }
    std::fill_n(&sums_[0][0], 3 * kSsdHeadBlock, 0.0f);
    for (int64_t c = chunks - 1; c >= 0; --c) {
      const int64_t row = begin + c * kSsdChunk, n = std::min(kSsdChunk, end - row);
      keys_.load(forward, block.group, row, n);
      std::fill_n(db_, n * size, 0.0f);
      std::fill_n(dc_, n * size, 0.0f);
      for (int64_t i = 0; i < block.count; ++i) {
        differentiate(args, i, block.first + i, row, n, c > 0 ? state(block.first + i, c) : nullptr, c + 1 < chunks);
      }
      for (int64_t i = 0; i < n; ++i) {
        float* to =
            shared.keys + (block.index * shared.tokens + row + i) * 2 * heads_.keys() + block.group * heads_.state_size;
        std::copy_n(db_ + i * size, size, to);
        std::copy_n(dc_ + i * size, size, to + heads_.keys());
      }
    }
    if (shared.weights == nullptr) return;
    for (int64_t part = 0; part < 3; ++part) {
      std::copy_n(sums_[part], block.count, shared.weights + (document * 3 + part) * heads_.num_heads + block.first);
    }
  }

 private:
  int64_t state_size() const { return heads_.state_size * heads_.head_dim; }

  /// Backward of one chunk of head `head`, the i-th of the block. `before` is its state before the chunk, null for
  /// zeros; `continues`: the i-th dstate holds the gradient of the state after it.
  void differentiate(const SsdScanGradArgs& args, int64_t i, int64_t head, int64_t row, int64_t n, const float* before,
                     bool continues) {
    const RowMath& math = row_math();
    const int64_t dim = heads_.head_dim;
    // Gradients of Δ where it scales x, and of G. The latter's sums are differences of much larger ones if the decay is
    // strong.
    float ddelta[kSsdChunk];
    double dg_sum[kSsdChunk] = {};
    float* dstate = dstates_ + i * state_size();
    chunk_.load(args.forward, keys_, head, row, n);
    for (int64_t r = 0; r < n; ++r) {
      load_ssd_row(args.dout, (row + r) * heads_.inner() + head * dim, dout_ + r * dim, dim);
    }
    differentiate_values(dstate, continues);
    const float skip = ssd_element(args.forward.d, head);
    for (int64_t r = 0; r < n; ++r) {
      ddelta[r] = math.dot(dv_ + r * dim, chunk_.x + r * dim, dim);
      sums_[2][i] += math.dot(dout_ + r * dim, chunk_.x + r * dim, dim);
      if (!args.dxbc.wanted()) continue;
      math.scale(chunk_.steps[r].delta, dv_ + r * dim, scaled_ + r * dim, dim);
      math.add_scaled(skip, dout_ + r * dim, scaled_ + r * dim, dim);
      store_block(math, scaled_ + r * dim, args.dxbc, (row + r) * heads_.width() + head * dim, dim);
    }
    differentiate_scores(dg_sum);
    if (continues) differentiate_update(dstate, before, dg_sum);
    differentiate_reads(dstate, before, continues, dg_sum);
    store_steps(args, i, head, row, ddelta, dg_sum);
  }

  /// dv_ ← the gradient of V; dp_ ← that of P.
  void differentiate_values(const float* dstate, bool continues) {
    const int64_t n = chunk_.n, dim = heads_.head_dim;
    Product{n, dim, n, dim}(transposed(ssd_rows(chunk_.p, kSsdChunk)), ssd_rows(dout_, dim), dv_, 0.0f);
    if (continues) {
      Product{n, dim, heads_.state_size, dim}(ssd_rows(keys_.b, heads_.state_size), ssd_rows(dstate, dim), dv_, 1.0f,
                                              chunk_.to_end);
    }
    Product{n, n, dim, kSsdChunk}(ssd_rows(dout_, dim), transposed(ssd_rows(chunk_.v, dim)), dp_, 0.0f);
  }

  /// Backward of P to B, C and G.
  void differentiate_scores(double* dg_sum) {
    const int64_t n = chunk_.n, size = heads_.state_size;
    for (int64_t r = 0; r < n; ++r) {
      float* dp = dp_ + r * kSsdChunk;
      for (int64_t j = 0; j < r; ++j) {
        const auto change = static_cast<double>(dp[j] * chunk_.p[r * kSsdChunk + j]);
        dg_sum[r] += change;
        dg_sum[j] -= change;
      }
      row_math().multiply(dp, chunk_.decay + r * kSsdChunk, dp, r + 1);
      std::fill(dp + r + 1, dp + n, 0.0f);
    }
    const MatrixView dp = ssd_rows(dp_, kSsdChunk);
    const Product product{n, size, n, size};
    product(dp, ssd_rows(keys_.b, size), dc_, 1.0f);
    product(transposed(dp), ssd_rows(keys_.c, size), db_, 1.0f);
  }

  /// Backward of the chunk's additions to the state after it.
  void differentiate_update(const float* dstate, const float* before, double* dg_sum) {
    const RowMath& math = row_math();
    const int64_t n = chunk_.n, dim = heads_.head_dim, size = heads_.state_size;
    Product{n, size, dim, size}(ssd_rows(chunk_.v, dim), transposed(ssd_rows(dstate, dim)), to_keys_, 0.0f,
                                chunk_.to_end);
    for (int64_t r = 0; r < n; ++r) {
      math.add(db_ + r * size, to_keys_ + r * size, db_ + r * size, size);
      const auto change = static_cast<double>(math.dot(to_keys_ + r * size, keys_.b + r * size, size));
      dg_sum[r] -= change;
      dg_sum[n - 1] += change;
    }
    if (before == nullptr) return;
    float kept = 0;
    for (int64_t k = 0; k < size; ++k) kept += math.dot(before + k * dim, dstate + k * dim, dim);
    dg_sum[n - 1] += static_cast<double>(chunk_.end_growth() * kept);
  }

  /// Backward of the chunk's reads of the state before it; dstate becomes that state's gradient.
  void differentiate_reads(float* dstate, const float* before, bool continues, double* dg_sum) {
    if (before == nullptr) return;
    const RowMath& math = row_math();
    const int64_t n = chunk_.n, dim = heads_.head_dim, size = heads_.state_size;
    for (int64_t r = 0; r < n; ++r) math.scale(chunk_.grown[r], dout_ + r * dim, dout_ + r * dim, dim);
    Product{n, size, dim, size}(ssd_rows(dout_, dim), transposed(ssd_rows(before, dim)), to_keys_, 0.0f);
    for (int64_t r = 0; r < n; ++r) {
      math.add(dc_ + r * size, to_keys_ + r * size, dc_ + r * size, size);
      dg_sum[r] += static_cast<double>(math.dot(to_keys_ + r * size, keys_.c + r * size, size));
    }
    Product{size, dim, n, dim}(transposed(ssd_rows(keys_.c, size)), ssd_rows(dout_, dim), dstate,
                               continues ? chunk_.end_growth() : 0.0f);
  }

  void store_steps(const SsdScanGradArgs& args, int64_t i, int64_t head, int64_t row, const float* ddelta,
                   const double* dg_sum) {
    const float rate = -std::exp(ssd_element(args.forward.a_log, head));
    double sum = 0;
    for (int64_t r = chunk_.n - 1; r >= 0; --r) {
      sum += dg_sum[r];
      const auto dg = static_cast<float>(sum);
      float ddt = (ddelta[r] + dg * rate) * chunk_.steps[r].slope;
      sums_[0][i] += dg * chunk_.steps[r].g;
      sums_[1][i] += ddt;
      if (args.ddt.wanted()) store_block(row_math(), &ddt, args.ddt, (row + r) * heads_.num_heads + head, 1);
    }
  }

  SsdHeads heads_;
  SsdKeys keys_;
  SsdChunk chunk_;
  float *dstates_, *db_, *dc_, *to_keys_, *dout_, *dv_, *scaled_, *dp_;
  float sums_[3][kSsdHeadBlock];  // gradients of a_log, dt_bias and d
};

/// Adds the gradients of B and C over the blocks of a group, in order.
void sum_blocks(ThreadPool& pool, const SsdScanGradArgs& args, const float* keys) {
  const SsdHeads& heads = args.forward.heads;
  const int64_t tokens = args.dout.shape[0], width = 2 * heads.keys();
  constexpr int64_t kRows = 16;
  pool.parallel_ranges(tokens, kRows, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      for_row_blocks(width, [&](int64_t begin, int64_t n) {
        float sum[kRowBlock];
        std::copy_n(keys + row * width + begin, n, sum);
        for (int64_t block = 1; block < heads.blocks(); ++block) {
          row_math().add(sum, keys + (block * tokens + row) * width + begin, sum, n);
        }
        store_block(row_math(), sum, args.dxbc, row * heads.width() + heads.inner() + begin, n);
      });
    }
  });
}

/// dst = Σ over documents of partial [D, 3, H], in order.
void sum_documents(const Tensor& partial, int64_t part, const GradDest& dest) {
  if (!dest.wanted()) return;
  const int64_t documents = partial.shape[0], heads = partial.shape[2];
  for (int64_t head = 0; head < heads; ++head) {
    float sum = 0;
    for (int64_t n = 0; n < documents; ++n) sum += partial.as<float>()[(n * 3 + part) * heads + head];
    float& dst = dest.dst.as<float>()[head];
    dst = dest.beta != 0.0f ? dst + sum : sum;
  }
}

}  // namespace

void ssd_scan_grad(const Context& context, const SsdScanGradArgs& args) {
  const SsdHeads& heads = args.forward.heads;
  const int64_t tokens = args.dout.shape[0], documents = args.forward.sequences.num_documents;
  const int64_t floats = workspace_floats<Backward>(heads);
  ArenaScope memory(context.scratch());
  const Tensor scratch = memory.take({context.threads(), floats}, DType::kF32);
  // Chunks of all documents except their first have different slots, from the document's first token / kSsdChunk on.
  const Tensor states =
      memory.take({tokens / kSsdChunk, heads.num_heads, heads.state_size, heads.head_dim}, DType::kF32);
  const Tensor keys = memory.take({heads.blocks(), tokens, 2 * heads.keys()}, DType::kF32);
  Tensor partial;
  if (args.da_log.wanted() || args.ddt_bias.wanted() || args.dd.wanted()) {
    partial = memory.take({documents, 3, heads.num_heads}, DType::kF32);
  }
  context.launch([=](ThreadPool& pool) {
    if (partial.defined()) std::fill_n(partial.as<float>(), partial.numel(), 0.0f);
    const Shared shared{.states = states.as<float>(),
                        .keys = keys.as<float>(),
                        .weights = partial.defined() ? partial.as<float>() : nullptr,
                        .tokens = tokens};
    const SsdHeads& all = args.forward.heads;
    const int32_t* offsets = args.forward.sequences.cu_seqlens.as<int32_t>();
    const int64_t blocks = all.num_groups * all.blocks();
    pool.parallel_for(documents * blocks, [&](int64_t i, int thread) {
      const int64_t document = i / blocks;
      if (offsets[document] == offsets[document + 1]) return;
      FloatStack stack(scratch.as<float>() + thread * floats);
      Backward(all, stack)
          .run(args, shared, ssd_head_block(all, i % blocks), document, offsets[document], offsets[document + 1]);
    });
    if (args.dxbc.wanted()) sum_blocks(pool, args, shared.keys);
    if (!partial.defined()) return;
    sum_documents(partial, 0, args.da_log);
    sum_documents(partial, 1, args.ddt_bias);
    sum_documents(partial, 2, args.dd);
  });
}

}  // namespace hone::cpu
