// adafactor: one Adafactor update of parameters; the second moments of matrices are kept as row and column factors.
// Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (arXiv:1804.04235),
// algorithms 4 and 5; order of operations as in transformers.optimization.Adafactor.
#pragma once

#include <vector>

#include "core/stream/context.h"
#include "tape/step_scalars.h"

namespace hone {

/// A parameter with its optimizer state, zero before the first step. A parameter with two or more dimensions consists
/// of matrices [.., R, C] (the experts of a layer: [E, R, C]), each with its own factors.
struct AdafactorTensor {
  Tensor parameter;          ///< float32: the master weight, or the parameter itself; bfloat16: the parameter itself
  Tensor working_copy = {};  ///< bfloat16 copy of a float32 parameter to refresh, or undefined
  Tensor rows = {};          ///< float32 [.., R], or undefined
  Tensor columns = {};       ///< float32 [.., C], or undefined
  Tensor v = {};             ///< float32, shape of the parameter, if that has fewer than two dimensions; else undefined
  Tensor m = {};             ///< float32 or bfloat16, shape of the parameter; undefined without beta1
  Tensor gradient;           ///< float32 or bfloat16
  double weight_decay = 0;
  uint32_t stream_id = 0;  ///< separates this tensor's random numbers from all others
};

/// For each tensor, in float32 with sums in float64. The step's scalars are read on the device: learning_rate is the
/// step size, bias_correction2 is 1 - β2t = t^decay_rate:
///   g = gradient · clip_coefficient
///   rows[r]    = β2t · rows[r]    + (1 - β2t) · (mean over c of g[r, c]² + eps1)
///   columns[c] = β2t · columns[c] + (1 - β2t) · (mean over r of g[r, c]² + eps1)
///   u[r, c] = g[r, c] / sqrt(rows[r] / (mean of rows) · columns[c])           or, without factors,
///   v = β2t · v + (1 - β2t) · (g² + eps1),  u = g / sqrt(v)
///   lr = learning_rate · rate_factor, times max(eps2, RMS(p)) with scale_parameter
///   u = lr · u / max(1, RMS(u) / clip_threshold)
///   m = beta1 · m + (1 - beta1) · u,  u = m      with beta1
///   p = p · (1 - lr · weight_decay) - u
///   working_copy = round(p)
/// RMS is over the whole tensor. bfloat16 values are stored with stochastic rounding (stochastic_rounding.h), with
/// random numbers that depend on the step's seed, the tensor's stream_id and the element; the parameter's update uses
/// the unrounded m. Nothing is written if the step's nonfinite flag is set. Deterministic. Scratch on a GPU: at most
/// the larger of 32 MB and 1/64 of the largest gradient in float32, plus the sums of tiles.
struct AdafactorArgs {
  std::vector<AdafactorTensor> tensors;  ///< any number and sizes: a GPU updates many small ones in one launch
  const StepScalars* scalars = nullptr;
  double eps1 = 1e-30, eps2 = 1e-3;
  double clip_threshold = 1;
  double beta1 = 0;  ///< 0: no first moment
  bool scale_parameter = false;
  double rate_factor = 1;  ///< factor of the step's learning rate
};

void adafactor(const Context& context, const AdafactorArgs& args);

/// A parameter as rows for the loops of the backends: the rows of its matrices, or pieces of kVectorRow of a vector.
struct AdafactorRows {
  int64_t matrices = 1;  ///< matrices with rows_of_matrix rows each
  int64_t rows_of_matrix = 0;
  int64_t width = 0;  ///< elements of a row; the last row of a vector may have fewer
  int64_t elements = 0;

  static constexpr int64_t kVectorRow = 1024;

  static AdafactorRows of(const AdafactorTensor& tensor) {
    const Shape& shape = tensor.parameter.shape;
    AdafactorRows rows;
    rows.elements = shape.numel();
    if (tensor.rows.defined()) {
      rows.rows_of_matrix = shape[shape.rank() - 2];
      rows.width = shape[shape.rank() - 1];
      rows.matrices = rows.elements == 0 ? 0 : rows.elements / (rows.rows_of_matrix * rows.width);
    } else {
      rows.rows_of_matrix = (rows.elements + kVectorRow - 1) / kVectorRow;
      rows.width = kVectorRow;
    }
    return rows;
  }
  int64_t rows() const { return matrices * rows_of_matrix; }
};

namespace cpu {
void adafactor(const Context& context, const AdafactorArgs& args);
}

namespace cuda {
void adafactor(const Context& context, const AdafactorArgs& args);
}

}  // namespace hone
