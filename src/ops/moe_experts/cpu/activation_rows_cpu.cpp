#include "ops/moe_experts/cpu/activation_rows_cpu.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/cpu/thread_pool.h"

namespace hone::cpu {

namespace {

constexpr int64_t kRowsPerTask = 16;

/// Rows are far apart in memory, so hardware does not prefetch them.
constexpr int64_t kRowsAhead = 8;

/// Prefetches the elements of x [R, width] at columns [begin, begin + n), some rows ahead.
template <bool Writes>
void prefetch_ahead(const Tensor& x, int64_t begin, int64_t n) {
  const int64_t size = size_of(x.dtype);
  const auto* at = static_cast<const std::byte*>(x.data) + (begin + kRowsAhead * x.shape[1]) * size;
  for (int64_t i = 0; i < n * size; i += 64) __builtin_prefetch(at + i, Writes);
}

/// Columns [column, column + n) of row r through f: act = glu · linear, and
///   d act / d gate = glu_slope · linear      d act / d up = glu · linear_slope
/// for f = glu(gate) · linear(up).
class ActivationBlock {
 public:
  ActivationBlock(const RowMath& math, const ExpertActivation& function) : math_(math), function_(function) {}

  /// Loads gate from element `at` of h, and up from `intermediate` elements later.
  void load(const Tensor& h, int64_t at, int64_t intermediate, int64_t n) {
    float gate_buffer[kRowBlock];
    const float* gate = load_block(math_, h, at, gate_buffer, n);
    compute(gate, load_block(math_, h, at + intermediate, linear_buffer_, n), n);
  }

  /// SwiGLU has no glu_slope: ActivationGrad::swiglu_columns() computes its gradient.
  void compute(const float* gate, const float* up, int64_t n) {
    linear = up;
    if (function_.kind == ExpertActivation::Kind::kSwiglu) return math_.silu(gate, glu, n);
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

  /// Computes act rounded to its dtype, as the product reads it.
  void activate(DType dtype, float* act, int64_t n) const {
    math_.multiply(glu, linear, act, n);
    if (dtype == DType::kBF16) math_.round(act, n);
  }

  /// Replaces glu and glu_slope by the derivatives in up and in gate.
  void differentiate(int64_t n) {
    math_.multiply(glu_slope, linear, glu_slope, n);
    math_.multiply(glu, linear_slope_, glu, n);
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
  if (args_.function.kind == ExpertActivation::Kind::kSwiglu && args_.dh.wanted()) {
    return swiglu_columns(r, column, n, w, dact);
  }
  ActivationBlock f(math_, args_.function);
  f.load(args_.h, gate_at, intermediate_, n);
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
  store_weighted(w, act, r, column, n);
  return dot;
}

float ActivationGrad::swiglu_columns(int64_t r, int64_t column, int64_t n, float w, const float* dact) const {
  const int64_t gate_at = r * 2 * intermediate_ + column, up_at = gate_at + intermediate_;
  float gate_buffer[kRowBlock], up_buffer[kRowBlock], act[kRowBlock], dgate[kRowBlock], dup[kRowBlock];
  for (const int64_t at : {gate_at, up_at}) {
    prefetch_ahead<false>(args_.h, at, n);
    prefetch_ahead<true>(args_.dh.dst, at, n);
  }
  const float* gate = load_block(math_, args_.h, gate_at, gate_buffer, n);
  const float* up = load_block(math_, args_.h, up_at, up_buffer, n);
  math_.swiglu_grad(w, gate, up, dact, act, dgate, dup, n);
  store_block(math_, dgate, args_.dh, gate_at, n);
  store_block(math_, dup, args_.dh, up_at, n);
  if (args_.h.dtype == DType::kBF16) math_.round(act, n);
  const float dot = math_.dot(dact, act, n);
  store_weighted(w, act, r, column, n);
  return dot;
}

void ActivationGrad::store_weighted(float w, float* act, int64_t r, int64_t column, int64_t n) const {
  if (!args_.weighted_act.defined()) return;
  math_.scale(w, act, act, n);
  store_block(math_, static_cast<const float*>(act), args_.weighted_act, r * intermediate_ + column, n);
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

void activate_columns(const RowMath& math, const ExpertActivation& function, float* gate, float* up, const Tensor& h,
                      const Tensor& act, int64_t r, int64_t column, int64_t n) {
  const int64_t intermediate = act.shape[1], gate_at = r * 2 * intermediate + column;
  prefetch_ahead<true>(act, r * intermediate + column, n);
  for (const auto& [values, at] : {std::pair(gate, gate_at), std::pair(up, gate_at + intermediate)}) {
    prefetch_ahead<true>(h, at, n);
    if (h.dtype == DType::kBF16) {
      math.round_and_narrow(values, h.as<BFloat16>() + at, n);
    } else {
      store_block(math, static_cast<const float*>(values), h, at, n);
    }
  }
  ActivationBlock f(math, function);
  f.compute(gate, up, n);
  math.multiply(f.glu, f.linear, f.glu, n);
  store_block(math, static_cast<const float*>(f.glu), act, r * intermediate + column, n);
}

void activate_rows(ThreadPool& pool, const ExpertRows& rows, const ExpertActivation& function, const Tensor& h,
                   const Tensor& act) {
  const RowMath& math = row_math();
  const int64_t intermediate = act.shape[1];
  pool.parallel_ranges(rows_in_use(rows), kRowsPerTask, [&](int64_t row, int64_t end) {
    ActivationBlock f(math, function);
    for (; row < end; ++row) {
      for_row_blocks(intermediate, [&](int64_t column, int64_t n) {
        f.load(h, row * 2 * intermediate + column, intermediate, n);
        math.multiply(f.glu, f.linear, f.glu, n);
        store_block(math, static_cast<const float*>(f.glu), act, row * intermediate + column, n);
      });
    }
  });
}

void clear_weights_grad_elsewhere(ThreadPool& pool, const ExpertRows& rows, const GradDest& dweights) {
  if (rows_in_use(rows) == rows.row.numel()) return;
  HONE_ASSERT(dweights.beta == 0.0f, "zeros overwrite");
  const size_t element = size_of(dweights.dst.dtype);
  pool.parallel_ranges(rows.row.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t choice = begin; choice < end; ++choice) {
      if (rows.row.as<int32_t>()[choice] < 0) {
        std::memset(dweights.dst.data + static_cast<size_t>(choice) * element, 0, element);
      }
    }
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
