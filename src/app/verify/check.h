// Comparisons of our numbers with a case's, each against a bound.
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

/// Bounds that the reference's own noise sets: twice the noise, where that is more than the bound of the row.
struct NoiseBounds {
  int64_t count = 0;   ///< of the numbers of the row
  int64_t of = 0;      ///< how many numbers the row compares
  double largest = 0;  ///< of the noises that set one
};

/// One row of the report. It may compare many numbers, some of them with a bound of their own; error and bound are
/// those of the number whose error is largest over its bound, so the row holds if all of them do.
struct Check {
  std::string name;
  double error = 0;                ///< the worst one
  double bound = 0;                ///< what it may be at most
  std::string measure;             ///< what the error is relative to
  bool required = true;            ///< false: shown only
  std::vector<TensorError> worst;  ///< where tensors are compared: the ten that are largest over their bounds
  NoiseBounds noise = {};

  /// An error that is not a number does not hold.
  bool ok() const { return error <= bound; }
  /// error / bound: above 1 the row does not hold; infinite for any error where none is allowed.
  double of_bound() const;
};

/// Whether `a` is further over its bound than `b`; an error that is not a number is the furthest.
bool is_worse(const Check& a, const Check& b);

/// |ours − reference| / |reference|
Check compare_number(std::string name, double ours, double reference, double bound);
/// The worst of several numbers, each relative to its own reference and within the larger of `bound` and twice its
/// `noise`. Noise: one for each number, or none at all.
Check compare_numbers(std::string name, std::span<const double> ours, std::span<const double> reference, double bound,
                      std::span<const double> noise = {});
/// max |ours − reference|
Check compare_absolute(std::string name, std::span<const double> ours, std::span<const double> reference, double bound);
/// max |ours − reference| / max |reference|
Check compare_logits(std::string name, std::span<const float> ours, std::span<const float> reference, double bound);
/// The number of positions that differ; none may.
Check compare_tokens(std::string name, std::span<const int32_t> ours, std::span<const int32_t> reference);

/// Gradients. Two rows:
///   NAME             ‖ours − reference‖ / max(‖reference‖, 1e-4 ‖all references‖), the worst tensor
///   NAME, zeros      rows (experts of a fused tensor) that are all zero in the reference and not in ours; none may be
/// Tensors that only one side has are a UserError naming `file`.
std::vector<Check> compare_gradients(const std::string& name, const HostTensors& ours,
                                     const ReferenceTensors& reference, const std::string& file, double bound);

/// What training changed, Δ = final − initial. UserError naming `file`, which has the final ones, if the tensors
/// differ.
HostTensors changes(const HostTensors& initial, const HostTensors& final, const std::string& file);

/// Changes. Two rows:
///   NAME             ‖Δ − Δref‖ / ‖Δref‖ over all tensors
///   NAME, tensors    the same of the worst tensor, of at least its share of ‖Δref‖ by number of elements
/// Each is held to the larger of `bound` and twice its noise.
std::vector<Check> compare_updates(const std::string& name, const HostTensors& ours, const ReferenceTensors& reference,
                                   const std::string& file, double bound, const ChangeNoise& noise = {});

/// ‖ours − reference‖ / ‖reference‖ of each tensor.
std::vector<TensorError> relative_errors(const HostTensors& ours, const ReferenceTensors& reference,
                                         const std::string& file);

}  // namespace hone
