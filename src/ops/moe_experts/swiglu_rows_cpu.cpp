#include "ops/moe_experts/swiglu_rows_cpu.h"

namespace hone::cpu {

namespace {

constexpr int64_t kRowsPerTask = 16;

/// act = silu · up as the product reads it: rounded to its dtype.
void activate(const RowMath& math, const float* silu, const float* up, DType dtype, float* act, int64_t n) {
  math.multiply(silu, up, act, n);
  if (dtype == DType::kBF16) math.round(act, n);
}

class ActivationGrad {
 public:
  explicit ActivationGrad(const ActivationGradArgs& args)
      : args_(args), intermediate_(args.h.shape[1] / 2), wants_dact_(args.dh.wanted() || args.dweights.wanted()) {}

  void row(int64_t r) const {
    const int32_t choice = args_.rows.assignment.as<int32_t>()[r];
    const float w = element_of(args_.weights, choice);
    float dot = 0.0f;
    for_row_blocks(intermediate_, [&](int64_t column, int64_t n) { dot += block(r, column, n, w); });
    if (args_.dweights.wanted()) store_block(math_, &dot, args_.dweights, choice, 1);
  }

 private:
  /// Works on columns [column, column + n) of row r; returns their part of <dact, act>.
  float block(int64_t r, int64_t column, int64_t n, float w) const {
    const int64_t gate_at = r * 2 * intermediate_ + column, up_at = gate_at + intermediate_;
    float gate_buffer[kRowBlock], up_buffer[kRowBlock], silu[kRowBlock], slope[kRowBlock], act[kRowBlock];
    const float* up = load_block(math_, args_.h, up_at, up_buffer, n);
    math_.silu_and_slope(load_block(math_, args_.h, gate_at, gate_buffer, n), silu, slope, n);
    activate(math_, silu, up, args_.h.dtype, act, n);
    float dot = 0.0f;
    if (wants_dact_) {
      const float* dact = args_.dact.as<float>() + r * intermediate_ + column;
      dot = math_.dot(dact, act, n);
      if (args_.dh.wanted()) {
        math_.multiply(slope, up, slope, n);
        for (const auto& [factor, at] : {std::pair(slope, gate_at), std::pair(silu, up_at)}) {
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

  const RowMath& math_ = row_math();
  const ActivationGradArgs& args_;
  const int64_t intermediate_;
  const bool wants_dact_;
};

}  // namespace

void activate_rows(ThreadPool& pool, const Tensor& h, const Tensor& act) {
  const RowMath& math = row_math();
  const int64_t intermediate = act.shape[1];
  pool.parallel_ranges(h.shape[0], kRowsPerTask, [&](int64_t begin, int64_t end) {
    float gate_buffer[kRowBlock], up_buffer[kRowBlock], silu[kRowBlock];
    for (int64_t r = begin; r < end; ++r) {
      for_row_blocks(intermediate, [&](int64_t column, int64_t n) {
        const int64_t gate_at = r * 2 * intermediate + column;
        math.silu(load_block(math, h, gate_at, gate_buffer, n), silu, n);
        math.multiply(silu, load_block(math, h, gate_at + intermediate, up_buffer, n), silu, n);
        store_block(math, static_cast<const float*>(silu), act, r * intermediate + column, n);
      });
    }
  });
}

void activation_grad(ThreadPool& pool, const ActivationGradArgs& args) {
  const ActivationGrad grad(args);
  pool.parallel_ranges(args.h.shape[0], kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) grad.row(r);
  });
}

}  // namespace hone::cpu
