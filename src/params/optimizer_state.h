// OptimizerState: what training keeps of a parameter beside its value and gradient, and in which formats.
#pragma once

#include "ops/adamw/adamw.h"

namespace hone {

/// The second moments that an optimizer keeps.
enum class SecondMoment {
  kNone,
  kWhole,     ///< a number for each element
  kFactored,  ///< for matrices a number per row and per column (ops/adafactor); for vectors as kWhole
};

/// Formats of a parameter's training state.
struct TrainingFormats {
  DType gradient = DType::kF32;  ///< or bfloat16
  DType master = DType::kF32;    ///< bfloat16: no master; a bfloat16 parameter is stepped itself
  DType m = DType::kF32;         ///< moments: float32, bfloat16, or i8 and u8 with scales
  DType v = DType::kF32;
  bool has_m = true;
  SecondMoment second_moment = SecondMoment::kWhole;
  bool whole_matrices = false;  ///< ranks that share the state cut it between matrices (ParameterSpec::matrix())

  bool operator==(const TrainingFormats&) const = default;
};

/// What training keeps of the elements that this rank steps (ParameterShare::own()). Tensors that it does not keep are
/// undefined.
struct OptimizerState {
  TrainingFormats formats;  ///< in force: Parameter::set_formats()
  Moment moment1 = {}, moment2 = {};
  /// Factors of the second moments, float32: [.., R] and [.., C] of a parameter [.., R, C].
  Tensor row_moments = {}, column_moments = {};
  /// Float32 values of a narrower parameter; undefined if formats want none, or if it would be a copy of the value.
  Tensor master = {};

  bool has_master() const { return master.defined(); }
};

}  // namespace hone
