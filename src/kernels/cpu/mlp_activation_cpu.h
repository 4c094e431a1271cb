// The activation of an MLP and its slopes on a block of float32, from row_math functions.
#pragma once

#include <algorithm>

#include "kernels/cpu/row_math/row_blocks.h"
#include "kernels/mlp_activation.h"

namespace hone::cpu {

/// n <= kRowBlock elements of f = glu(gate) · linear(up), or of f = glu(h) without a gate. An array may be overwritten
/// once it is not needed.
class ActivationBlock {
 public:
  ActivationBlock(const RowMath& math, const MlpActivation& function) : math_(math), function_(function) {}

  /// From columns [column, column + n) of a row of h that starts at element `row_begin`; `width` as in MlpActivation.
  void load(const Tensor& h, int64_t row_begin, int64_t column, int64_t width, int64_t n, bool slopes = false) {
    float gate_buffer[kRowBlock];
    const int64_t at = row_begin + column;
    const float* gate = load_block(math_, h, at, gate_buffer, n);
    const float* up = function_.gated() ? load_block(math_, h, at + width, linear_buffer_, n) : nullptr;
    compute(gate, up, n, slopes);
  }

  /// `up` is null without a gate. `slopes`: glu_slope, too.
  void compute(const float* gate, const float* up, int64_t n, bool slopes = false) {
    linear = up;
    switch (function_.kind) {
      case MlpActivation::Kind::kSwiglu:
        return slopes ? math_.silu_and_slope(gate, glu, glu_slope, n) : math_.silu(gate, glu, n);
      case MlpActivation::Kind::kClampedSwiglu:
        return clamped(gate, n);
      case MlpActivation::Kind::kGeglu:
        return slopes ? math_.gelu_and_slope(gate, glu, glu_slope, n) : math_.gelu(gate, glu, n);
      case MlpActivation::Kind::kSquaredRelu:
        math_.relu(gate, glu_slope, n);
        math_.multiply(glu_slope, glu_slope, glu, n);
        return math_.scale(2.0f, glu_slope, glu_slope, n);
    }
  }

  /// act = f, not rounded; it may be glu.
  void multiply(float* act, int64_t n) const {
    if (function_.gated()) return math_.multiply(glu, linear, act, n);
    if (act != glu) math_.scale(1.0f, glu, act, n);
  }
  /// act = f, rounded to its dtype as the product reads it.
  void activate(DType dtype, float* act, int64_t n) const {
    multiply(act, n);
    if (dtype == DType::kBF16) math_.round(act, n);
  }

  /// Replaces glu_slope by the derivative in gate, and with a gate glu by that in up.
  void differentiate(int64_t n) {
    if (!function_.gated()) return;
    math_.multiply(glu_slope, linear, glu_slope, n);
    if (function_.kind == MlpActivation::Kind::kClampedSwiglu) math_.multiply(glu, linear_slope_, glu, n);
  }

  float glu[kRowBlock], glu_slope[kRowBlock];
  const float* linear = nullptr;

 private:
  /// g' · sigmoid(alpha · g') = silu(alpha · g') / alpha, whose slope in g' is that of silu.
  void clamped(const float* gate, int64_t n) {
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

  const RowMath& math_;
  const MlpActivation& function_;
  float linear_buffer_[kRowBlock], linear_slope_[kRowBlock];
};

}  // namespace hone::cpu
