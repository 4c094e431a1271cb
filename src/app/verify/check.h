// Comparisons of computed numbers with those of a reference case, each with a bound.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/verify/golden_case.h"
#include "app/verify/reference_tensor.h"

namespace hone {

struct TensorError {
  std::string name;
  double error = 0;
};

/// Bounds from the reference's noise: twice the noise, if that exceeds the bound of the row.
struct NoiseBounds {
  int64_t count = 0;   ///< how many numbers have such a bound
  int64_t of = 0;      ///< how many numbers the row compares
  double largest = 0;  ///< the largest of these noises
};

/// One row of the report. It may compare many numbers, some with their own bounds. error and bound are those of the
/// number with the largest error / bound, so the row holds if all its numbers hold.
struct Check {
  std::string name;
  double error = 0;                ///< the worst error
  double bound = 0;                ///< the largest permitted error
  std::string measure;             ///< what the error is relative to
  bool required = true;            ///< false: for information only
  std::vector<TensorError> worst;  ///< for tensors: the ten with the largest error / bound
  NoiseBounds noise = {};

  /// False if the error is NaN.
  bool ok() const { return error <= bound; }
  /// error / bound; above 1 the row does not hold. Infinite for an error > 0 with bound 0.
  double of_bound() const;
};

/// Whether `a` has a larger error / bound than `b`; NaN is the largest.
bool is_worse(const Check& a, const Check& b);

/// |ours − reference| / |reference|; the bound is the larger of `bound` and twice `noise`.
Check compare_number(std::string name, double ours, double reference, double bound, double noise = 0);
/// The worst of several numbers, each relative to its reference, with the larger of `bound` and twice its `noise` as
/// bound. `noise` has one element per number, or is empty.
Check compare_numbers(std::string name, std::span<const double> ours, std::span<const double> reference, double bound,
                      std::span<const double> noise = {});
/// max |ours − reference|; the bound is the larger of `bound` and twice `noise`.
Check compare_absolute(std::string name, std::span<const double> ours, std::span<const double> reference, double bound,
                       double noise = 0);
/// max |ours − reference| / max |reference|, with the same bound.
Check compare_logits(std::string name, std::span<const float> ours, std::span<const float> reference, double bound,
                     double noise = 0);
/// The number of positions that differ; the bound is 0.
Check compare_tokens(std::string name, std::span<const int32_t> ours, std::span<const int32_t> reference);

/// Gradients. Two rows:
///   NAME             ‖ours − reference‖ / max(‖reference‖, 1e-4 ‖all references‖), the worst tensor
///   NAME, zeros      rows (experts of a fused tensor) that are zero in the reference and not in ours; the bound is 0
/// The bound of a tensor is the larger of `bound` and twice its noise.
/// Throws UserError with `file` for tensors that only one side has.
std::vector<Check> compare_gradients(const std::string& name, const HostTensors& ours,
                                     const ReferenceTensors& reference, const std::string& file, double bound,
                                     const GradientNoise& noise = {});

/// The changes by training, Δ = final − initial. Throws UserError with `file`, which has the final tensors, if the
/// names or shapes differ.
HostTensors changes(const HostTensors& initial, const HostTensors& final, const std::string& file);

/// Changes. Two rows:
///   NAME             ‖Δ − Δref‖ / ‖Δref‖ over all tensors
///   NAME, tensors    the same for the worst tensor, relative to at least its share of ‖Δref‖ by number of elements
/// The bound of each is the larger of `bound` and twice its noise.
std::vector<Check> compare_updates(const std::string& name, const HostTensors& ours, const ReferenceTensors& reference,
                                   const std::string& file, double bound, const ChangeNoise& noise = {});

/// ‖ours − reference‖ / ‖reference‖ for each tensor.
std::vector<TensorError> relative_errors(const HostTensors& ours, const ReferenceTensors& reference,
                                         const std::string& file);
/// Gradients as directions: 1 − the cosine between ours and the reference. Three rows:
///   NAME                     of all tensors as one vector
///   NAME, the median tensor, the worst tensor       each for itself, for information
std::vector<Check> compare_cosines(const std::string& name, const HostTensors& ours, const ReferenceTensors& reference,
                                   const std::string& file, double bound);

}  // namespace hone
