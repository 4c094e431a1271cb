#include <algorithm>
#include <array>
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/cpu/row_math/soft_cap_block.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace hone::cpu {

namespace {

/// The contribution of one supervised token to the totals.
struct TokenResult {
  double loss = 0;
  double entropy = 0;
  double hit = 0;
};

/// Sum of a row.
double sum_of(const RowMath& math, const float* row, int64_t n) {
  static constexpr auto kOnes = [] {
    std::array<float, kRowBlock> ones{};
    ones.fill(1.0f);
    return ones;
  }();
  double sum = 0;
  for_row_blocks(
      n, [&](int64_t begin, int64_t count) { sum += static_cast<double>(math.dot(row + begin, kOnes.data(), count)); });
  return sum;
}

/// The gradient of a row of logits: coefficient · (softmax - q), in place; before a soft cap of them.
struct Gradient {
  float coefficient = 0;
  float soft_cap = 0;   ///< 0: none
  bool narrow = false;  ///< rounded to bfloat16, stored in the first half of the row
};

/// The slope of the cap at capped values y.
void slope_of_cap(const RowMath& math, float cap, const float* y, float* slope, int64_t n) {
  math.scale(1.0f / cap, y, slope, n);
  for (int64_t i = 0; i < n; ++i) slope[i] = 1.0f - slope[i] * slope[i];
}

/// `sum` is Σ exp(logits - largest).
void differentiate_row(const RowMath& math, float* logits, int64_t vocab, int64_t target, float smoothing,
                       float largest, double sum, const Gradient& gradient) {
  const float scale = static_cast<float>(gradient.coefficient / sum);
  const float of_all = gradient.coefficient * smoothing / static_cast<float>(vocab);
  for_row_blocks(vocab, [&](int64_t begin, int64_t n) {
    float buffer[kRowBlock];
    float* const block = gradient.narrow ? buffer : logits + begin;
    float slope[kRowBlock];
    if (gradient.soft_cap > 0) slope_of_cap(math, gradient.soft_cap, logits + begin, slope, n);
    math.scaled_exp(scale, largest, logits + begin, block, n);
    if (target >= begin && target < begin + n) block[target - begin] -= gradient.coefficient * (1.0f - smoothing);
    for (int64_t v = 0; smoothing > 0 && v < n; ++v) block[v] -= of_all;
    if (gradient.soft_cap > 0) math.multiply(slope, block, block, n);
    // A bfloat16 block is stored before all logits that have not been read.
    if (gradient.narrow) math.narrow(block, reinterpret_cast<BFloat16*>(logits) + begin, n);
  });
}

/// Loss of one row of logits, which is overwritten by the gradient if wanted.
TokenResult differentiate_logits(const RowMath& math, float* logits, int64_t vocab, int64_t target, float smoothing,
                                 const Gradient* gradient) {
  const float largest = math.maximum(logits, vocab);
  double sum = 0, weighted = 0;
  for_row_blocks(vocab, [&](int64_t begin, int64_t n) {
    const ExpSums block = math.exp_sums(logits + begin, largest, n);
    sum += static_cast<double>(block.sum);
    weighted += static_cast<double>(block.weighted);
  });
  const double log_sum = std::log(sum);
  TokenResult result;
  result.loss = log_sum + (static_cast<double>(largest) - static_cast<double>(logits[target]));
  if (smoothing > 0) {
    const double mean = sum_of(math, logits, vocab) / static_cast<double>(vocab);
    result.loss += static_cast<double>(smoothing) * (static_cast<double>(logits[target]) - mean);
  }
  result.entropy = log_sum - weighted / sum;
  const bool hit = logits[target] == largest && math.maximum(logits, target) < largest;
  result.hit = hit ? 1.0 : 0.0;
  if (gradient) differentiate_row(math, logits, vocab, target, smoothing, largest, sum, *gradient);
  return result;
}

/// One launch: its sizes and its scratch memory, whose tensors have `chunk_rows` rows except `results`.
struct Head {
  LinearCrossEntropyArgs args;
  int64_t supervised = 0, vocab = 0, hidden = 0, rank = 0, chunk_rows = 0;
  Tensor logits;   // [chunk, V] float32; dlogits() after the loss
  Tensor dx_rows;  // [chunk, H] float32
  Tensor dxa_rows;
  Tensor results;  // float64 [S, 3]: TokenResult

  explicit Head(const LinearCrossEntropyArgs& a)
      : args(a), supervised(a.tokens.count()), vocab(a.w.shape[0]), hidden(a.w.shape[1]) {
    if (args.xa.defined()) rank = args.xa.shape[1];
    const int64_t bytes = args.max_logits_bytes > 0 ? args.max_logits_bytes : default_logits_bytes(DeviceKind::kCpu);
    const int64_t most = std::max<int64_t>(1, bytes / (vocab * static_cast<int64_t>(sizeof(float))));
    // Whole blocks of the sums over rows, if memory allows: then dW is bitwise equal for every chunk size.
    chunk_rows = std::min(supervised, most >= kGemmDepth ? most / kGemmDepth * kGemmDepth : most);
  }

  void take_scratch(ArenaScope& scratch) {
    logits = scratch.take({chunk_rows, vocab}, DType::kF32);
    if (args.dx.defined()) dx_rows = scratch.take({chunk_rows, hidden}, DType::kF32);
    if (args.dxa.defined()) dxa_rows = scratch.take({chunk_rows, rank}, DType::kF32);
    results = scratch.take({supervised, 3}, DType::kF64);
  }

  /// Inside launched work, where `present` may be read. A CPU does not need launches of equal sizes.
  void leave_out_padding() {
    if (args.tokens.present.defined()) supervised = *args.tokens.present.as<int32_t>();
  }

  /// Whether gradients of logits are bfloat16, like the operands of all products.
  bool narrows() const { return args.x.dtype == DType::kBF16 && gemm_rounds(); }

  /// The gradients of logits, [chunk, V].
  MatrixView dlogits() const {
    MatrixView view = matrix(logits);
    if (narrows()) view.dtype = DType::kBF16, view.row_stride *= 2;
    return view;
  }

  const int32_t* rows(int64_t begin) const {
    return supervised == 0 ? nullptr : args.tokens.rows.as<int32_t>() + begin;
  }
  TokenResult* result() const { return reinterpret_cast<TokenResult*>(results.as<double>()); }

  /// Supervised rows of x or xa from `begin` on.
  MatrixView gathered(const Tensor& x, int64_t begin) const {
    MatrixView view = matrix(x);
    view.row_index = rows(begin);
    return view;
  }

  void run(ThreadPool& pool) const {
    for (int64_t begin = 0; begin < supervised; begin += chunk_rows) {
      const int64_t count = std::min(chunk_rows, supervised - begin);
      compute_logits(pool, begin, count);
      compute_losses(pool, begin, count);
      if (args.dx.defined()) compute_dx(pool, begin, count);
      if (args.dxa.defined()) compute_dxa(pool, begin, count);
      add_weight_gradients(pool, begin, count);
    }
    if (supervised == 0) add_weight_gradients(pool, 0, 0);
    if (args.totals != nullptr) add_totals();
  }

  void compute_logits(ThreadPool& pool, int64_t begin, int64_t count) const {
    GemmArgs product{.m = count,
                     .n = vocab,
                     .k = hidden,
                     .a = gathered(args.x, begin),
                     .b = transposed(matrix(args.w)),
                     .c = logits.data,
                     .ldc = vocab,
                     .alpha = args.logit_scale,
                     .may_round = narrows()};
    gemm(pool, product);
    if (!args.xa.defined()) return;
    product.k = rank;
    product.a = gathered(args.xa, begin);
    product.b = transposed(matrix(args.lora_b));
    product.alpha = args.scaling * args.logit_scale;
    product.beta = 1.0f;
    gemm(pool, product);
  }

  void compute_losses(ThreadPool& pool, int64_t begin, int64_t count) const {
    const RowMath& math = row_math();
    const int32_t* targets = args.tokens.targets.as<int32_t>() + begin;
    const float* weights = args.tokens.weights.as<float>() + begin;
    float* losses = args.token_loss.defined() ? args.token_loss.as<float>() + begin : nullptr;
    const bool wants_grad = args.wants_grad();
    pool.parallel_for(count, [&](int64_t i, int) {
      HONE_ASSERT(targets[i] >= 0 && targets[i] < vocab);
      const Gradient gradient{weights[i] * args.scalars->inv_loss_weight, args.soft_cap, narrows()};
      float* const row = logits.as<float>() + i * vocab;
      if (args.soft_cap > 0) {
        for_row_blocks(vocab, [&](int64_t at, int64_t n) { soft_cap_block(math, args.soft_cap, row + at, n); });
      }
      const TokenResult r =
          differentiate_logits(math, row, vocab, targets[i], args.label_smoothing, wants_grad ? &gradient : nullptr);
      result()[begin + i] = r;
      if (losses != nullptr) losses[i] = static_cast<float>(r.loss);
    });
  }

  void compute_dx(ThreadPool& pool, int64_t begin, int64_t count) const {
    gemm(pool, {.m = count,
                .n = hidden,
                .k = vocab,
                .a = dlogits(),
                .b = matrix(args.w),
                .c = dx_rows.data,
                .ldc = hidden,
                .alpha = args.logit_scale,
                .may_round = narrows()});
    scatter(pool, dx_rows, args.dx, begin, count);
  }

  void compute_dxa(ThreadPool& pool, int64_t begin, int64_t count) const {
    gemm(pool, {.m = count,
                .n = rank,
                .k = vocab,
                .a = dlogits(),
                .b = matrix(args.lora_b),
                .c = dxa_rows.data,
                .ldc = rank,
                .alpha = args.scaling * args.logit_scale,
                .may_round = narrows()});
    scatter(pool, dxa_rows, args.dxa, begin, count);
  }

  void scatter(ThreadPool& pool, const Tensor& from, const Tensor& to, int64_t begin, int64_t count) const {
    const RowMath& math = row_math();
    const int64_t width = to.shape[1];
    pool.parallel_ranges(count, 8, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        const int64_t row = rows(begin)[i];
        for_row_blocks(width, [&](int64_t at, int64_t n) {
          store_block(math, from.as<float>() + i * width + at, to, row * width + at, n);
        });
      }
    });
  }

  void add_weight_gradients(ThreadPool& pool, int64_t begin, int64_t count) const {
    const auto add = [&](const GradDest& dest, const MatrixView& inputs, float alpha) {
      const int64_t width = dest.dst.shape[1];
      gemm(pool, {.m = vocab,
                  .n = width,
                  .k = count,
                  .a = transposed(dlogits()),
                  .b = inputs,
                  .c = dest.dst.data,
                  .ldc = width,
                  .alpha = alpha * args.logit_scale,
                  .beta = begin == 0 ? dest.beta : 1.0f,
                  .may_round = narrows()});
    };
    if (args.dw.wanted()) add(args.dw, gathered(args.x, begin), 1.0f);
    if (args.dlora_b.wanted()) add(args.dlora_b, gathered(args.xa, begin), args.scaling);
  }

  void add_totals() const {
    LossTotals& totals = *args.totals;
    for (int64_t s = 0; s < supervised; ++s) {
      const TokenResult& r = result()[s];
      const double weight = args.tokens.weights.as<float>()[s];
      totals.weighted_loss += weight * r.loss;
      totals.weight += weight;
      totals.hits += r.hit;
      totals.entropy += r.entropy;
    }
    totals.tokens += static_cast<double>(supervised);
  }
};

}  // namespace

void linear_cross_entropy(const Context& context, const LinearCrossEntropyArgs& args) {
  Head head(args);
  ArenaScope scratch(context.scratch());
  head.take_scratch(scratch);
  context.launch([head](ThreadPool& pool) {
    Head now = head;
    now.leave_out_padding();
    now.run(pool);
  });
}

}  // namespace hone::cpu
