// row_math: arithmetic on rows of float32 for the active instruction set, used by the elementwise CPU ops.
//
// An op processes a row in blocks that fit in L1 (row_blocks.h): it widens a block to float32, combines some of these
// functions, and rounds the result once. Sums use a fixed number of partial sums per instruction set, so results depend
// only on the data and the instruction set.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"

namespace hone {

/// Σ e and Σ (x - shift) · e with e = exp(x - shift).
struct ExpSums {
  float sum = 0;
  float weighted = 0;
};

/// One AdamW update of n elements, all float32, with the scalars of the step (formula: ops/adamw/adamw.h).
struct AdamwRow {
  float* parameter = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  const float* gradient = nullptr;
  float gradient_scale = 1;  ///< the clip coefficient
  float decay = 1;           ///< 1 - learning rate × weight decay
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float sqrt_bias_correction2 = 1;
  float eps = 0;
  float step_size = 0;  ///< learning rate / bias correction 1
};

/// Functions of one instruction set. x, y and z have n elements; an output may equal an input, otherwise ranges must
/// not overlap. NaN and infinity propagate.
struct RowMath {
  void (*widen)(const BFloat16* x, float* y, int64_t n);
  /// To nearest, ties to even.
  void (*narrow)(const float* x, BFloat16* y, int64_t n);
  void (*round)(float* x, int64_t n);                          ///< to the nearest bfloat16, kept as float32
  void (*round_and_narrow)(float* x, BFloat16* y, int64_t n);  ///< also stores it to y; no overlap
  /// Rounds to the bfloat16 above or below, decided by 16 bits of each word from bit `shift` on: stochastic_rounding.h.
  void (*narrow_randomly)(const float* x, const uint32_t* words, int shift, BFloat16* y, int64_t n);
  /// Random words for `groups` groups of four consecutive elements: words[4 i + j] = philox(key, {first_group + i, use,
  /// salts[i]})[j], with the group's number in two words (philox.h). A null `salts` means 0.
  void (*random_words)(uint64_t key, uint64_t first_group, uint32_t use, const uint32_t* salts, uint32_t* words,
                       int64_t groups);

  void (*scale_int8)(float scale, const int8_t* x, float* y, int64_t n);  ///< y = scale · x
  /// y = scale · x, where x are float8_e4m3fn codes.
  void (*scale_e4m3)(float scale, const uint8_t* x, float* y, int64_t n);
  /// MXFP4 (OCP Microscaling Formats 1.0): y = 2^(scales[i / 32] - 127) · x[i]. `codes` has two e2m1 numbers per byte,
  /// lower half first; n is a multiple of 32. Scale 255 is NaN; overflow and underflow of products follow IEEE 754.
  void (*scale_mxfp4)(const uint8_t* scales, const uint8_t* codes, float* y, int64_t n);
  /// y = scale · values[code], of 16 values. `codes` has two codes per byte, lower half first unless `upper_first`; n
  /// may be odd.
  void (*scale_halves)(const float* values, float scale, const uint8_t* codes, bool upper_first, float* y, int64_t n);

  void (*add)(const float* x, const float* z, float* y, int64_t n);       ///< y = x + z
  void (*multiply)(const float* x, const float* z, float* y, int64_t n);  ///< y = x · z
  void (*scale)(float a, const float* x, float* y, int64_t n);            ///< y = a · x
  void (*add_scaled)(float a, const float* x, float* y, int64_t n);       ///< y += a · x

  float (*dot)(const float* x, const float* z, int64_t n);  ///< Σ x · z
  double (*sum_squares)(const float* x, int64_t n);         ///< Σ x², squared and summed in float64
  float (*maximum)(const float* x, int64_t n);              ///< -infinity for n = 0; ignores NaN

  ExpSums (*exp_sums)(const float* x, float shift, int64_t n);
  void (*scaled_exp)(float a, float shift, const float* x, float* y, int64_t n);  ///< y = a · exp(x - shift)
  void (*sigmoid)(const float* x, float* y, int64_t n);                           ///< y = 1 / (1 + exp(-x))
  void (*silu)(const float* x, float* y, int64_t n);                              ///< y = x · sigmoid(x)
  /// y = x · s and dy_dx = s · (1 + x · (1 - s)) with s = sigmoid(x).
  void (*silu_and_slope)(const float* x, float* y, float* dy_dx, int64_t n);
  /// y = x · s and its slope, s = sigmoid(2 √(2 / π) · (x + 0.044715 x³)): GELU with tanh for the error function.
  void (*gelu)(const float* x, float* y, int64_t n);
  void (*gelu_and_slope)(const float* x, float* y, float* dy_dx, int64_t n);
  void (*relu)(const float* x, float* y, int64_t n);  ///< y = max(x, 0)
  /// y = silu(gate) · up, and gradients for an incoming gradient a · dy: dgate = a · (slope of silu(gate) · up · dy)
  /// and dup = a · (silu(gate) · dy). Outputs must not equal inputs.
  void (*swiglu_grad)(float a, const float* gate, const float* up, const float* dy, float* y, float* dgate, float* dup,
                      int64_t n);

  void (*adamw)(const AdamwRow& row, int64_t n);
};

/// The functions for active_isa(). The relative error of exp is below 2^-22 if its result is a normal number.
const RowMath& row_math();

}  // namespace hone
