#include "ops/moe_experts/activation_rows_cpu.h"
#include "core/thread_pool.h"

namespace hone::cpu {

namespace {

constexpr int64_t kRowsPerTask = 16;

/// Columns [column, column + n) of row r through f: act = glu · linear, and
///   d act / d gate = glu_slope · linear      d act / d up = glu · linear_slope
/// for f = glu(gate) · linear(up).
class ActivationBlock {
 public:
  ActivationBlock(const RowMath& math, const ExpertActivation& function) : math_(math), function_(function) {}

  /// Gate starts at element `at` of h, up `intermediate` elements later. glu_slope may go without a value where no
  /// gradient is formed.
  void load(const Tensor& h, int64_t at, int64_t intermediate, int64_t n, bool wants_slope) {
    float gate_buffer[kRowBlock];
    const float* gate = load_block(math_, h, at, gate_buffer, n);
    linear = load_block(math_, h, at + intermediate, linear_buffer_, n);
    if (function_.kind == ExpertActivation::Kind::kSwiglu) {
      wants_slope ? math_.silu_and_slope(gate, glu, glu_slope, n) : math_.silu(gate, glu, n);
      return;
    }
    // g' · sigmoid(alpha · g') = silu(alpha · g') / alpha, whose slope in g' is that of silu.
    const float alpha = function_.alpha, limit = function_.limit;
    for (int64_t i = 0; i < n; ++i) glu[i] = alpha * std::min(gate[i], limit);
    math_.silu_and_slope(glu, glu, glu_slope, n);
    for (int64_t i = 0; i < n; ++i) {
      glu[i] /= alpha;
      if (gate[i] > limit) glu_slope[i] = 0.0f;
      linear_slope_[i] = linear[i] >= -limit && linear[i] <= limit ? 1.0f : 0.0f;
      linear_buffer_[i] = std::clamp(linear[i], -limit, limit) + 1.0f;
    }
    linear = linear_buffer_;
  }

  /// act as the product reads it: rounded to its dtype.
  void activate(DType dtype, float* act, int64_t n) const {
    math_.multiply(glu, linear, act, n);
    if (dtype == DType::kBF16) math_.round(act, n);
  }

  /// glu and glu_slope become the derivatives in up and in gate.
  void differentiate(int64_t n) {
    math_.multiply(glu_slope, linear, glu_slope, n);
    if (function_.kind == ExpertActivation::Kind::kClampedSwiglu) math_.multiply(glu, linear_slope_, glu, n);
  }

  float glu[kRowBlock], glu_slope[kRowBlock];
  const float* linear = nullptr;

 private:
  const RowMath& math_;
  const ExpertActivation& function_;
  float linear_buffer_[kRowBlock], linear_slope_[kRowBlock];
};

}  // namespace

float ActivationGrad::columns(int64_t r, int64_t column, int64_t n, const float* dact) const {
  const int64_t gate_at = r * 2 * intermediate_ + column, up_at = gate_at + intermediate_;
  const float w = element_of(args_.weights, args_.rows.assignment.as<int32_t>()[r]);
  ActivationBlock f(math_, args_.function);
  f.load(args_.h, gate_at, intermediate_, n, args_.dh.wanted());
  float act[kRowBlock];
  f.activate(args_.h.dtype, act, n);
  float dot = 0.0f;
  if (wants_dact_) {
    dot = math_.dot(dact, act, n);
    if (args_.dh.wanted()) {
      f.differentiate(n);
      for (const auto& [factor, at] : {std::pair(f.glu_slope, gate_at), std::pair(f.glu, up_at)}) {
        math_.multiply(factor, dact, factor, n);
        math_.scale(w, factor, factor, n);
        store_block(math_, factor, args_.dh, at, n);
      }
    }
  }
  if (args_.weighted_act.defined()) {
    math_.scale(w, act, act, n);
    store_block(math_, static_cast<const float*>(act), args_.weighted_act, r * intermediate_ + column, n);
  }
  return dot;
}

void ActivationGrad::store_weight_grad(int64_t expert, int64_t r, float dot) const {
  if (args_.bias.defined()) dot += bias_dot(expert, args_.rows.token.as<int32_t>()[r]);
  store_block(math_, &dot, args_.dweights, args_.rows.assignment.as<int32_t>()[r], 1);
}

float ActivationGrad::bias_dot(int64_t expert, int64_t token) const {
  const int64_t hidden = args_.dout.shape[1];
  float dot = 0.0f, dout_buffer[kRowBlock], bias_buffer[kRowBlock];
  for_row_blocks(hidden, [&](int64_t column, int64_t n) {
    dot += math_.dot(load_block(math_, args_.dout, token * hidden + column, dout_buffer, n),
                     load_block(math_, args_.bias, expert * hidden + column, bias_buffer, n), n);
  });
  return dot;
}

void activate_row(const RowMath& math, const ExpertActivation& function, const Tensor& h, const Tensor& act, int64_t r,
                  int64_t column, int64_t count) {
  const int64_t intermediate = act.shape[1];
  ActivationBlock f(math, function);
  for_row_blocks(count, [&](int64_t begin, int64_t n) {
    const int64_t at = column + begin;
    f.load(h, r * 2 * intermediate + at, intermediate, n, false);
    math.multiply(f.glu, f.linear, f.glu, n);
    store_block(math, static_cast<const float*>(f.glu), act, r * intermediate + at, n);
  });
}

void activate_rows(ThreadPool& pool, const ExpertActivation& function, const Tensor& h, const Tensor& act) {
  const RowMath& math = row_math();
  pool.parallel_ranges(h.shape[0], kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) activate_row(math, function, h, act, r, 0, act.shape[1]);
  });
}

void activation_grad(ThreadPool& pool, const ActivationGradArgs& args) {
  const ActivationGrad grad(args);
  const int64_t intermediate = args.h.shape[1] / 2;
  for_each_expert_row(pool, args.rows, [&](int64_t expert, int64_t r) {
    float dot = 0.0f;
    for_row_blocks(intermediate, [&](int64_t column, int64_t n) {
      const float* dact = args.dact.defined() ? args.dact.as<float>() + r * intermediate + column : nullptr;
      dot += grad.columns(r, column, n, dact);
    });
    if (args.dweights.wanted()) grad.store_weight_grad(expert, r, dot);
  });
}

void router_weights_grad(ThreadPool& pool, const ActivationGradArgs& args, const Tensor& dots) {
  const ActivationGrad grad(args);
  const int64_t parts = dots.shape[1];
  for_each_expert_row(pool, args.rows, [&](int64_t expert, int64_t r) {
    float dot = 0.0f;
    for (int64_t i = 0; i < parts; ++i) dot += dots.as<float>()[r * parts + i];
    grad.store_weight_grad(expert, r, dot);
  });
}

}  // namespace hone::cpu
