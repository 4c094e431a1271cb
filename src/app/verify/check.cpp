#include "app/verify/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/verify/noise_bounds.h"
#include "core/base/error.h"

namespace hone {

namespace {

constexpr size_t kWorst = 10;
/// The error of a gradient is relative to at least this share of the norm of all gradients.
constexpr double kSmallGradient = 1e-4;

/// The larger of two errors; NaN is the largest.
double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double norm_of_all(const ReferenceTensors& tensors) {
  double sum = 0;
  for (const auto& [name, tensor] : tensors) sum += norm(tensor) * norm(tensor);
  return std::sqrt(sum);
}

/// a / b, with 0 / 0 = 0.
double ratio(double a, double b) { return a == 0 ? 0 : a / b; }

void sort_worst(std::vector<TensorError>& errors) {
  std::sort(errors.begin(), errors.end(), [](const TensorError& a, const TensorError& b) {
    const bool a_nan = std::isnan(a.error), b_nan = std::isnan(b.error);
    return a_nan != b_nan ? a_nan : a.error > b.error;
  });
}

/// Adds one number to a row, with the row's `bound` and its own `noise`.
void hold(Check& check, double error, double bound, double noise = 0) {
  Check one;
  one.error = error;
  one.bound = std::max(bound, kNoiseFactor * noise);
  if (one.bound > bound) {
    ++check.noise.count;
    check.noise.largest = std::max(check.noise.largest, noise);
  }
  if (check.noise.of++ > 0 && !is_worse(one, check)) return;
  check.error = one.error;
  check.bound = one.bound;
}

/// Adds tensors to a row, with the larger of `bound` and twice its noise as the bound of each.
void keep_worst(Check& check, std::vector<TensorError> errors, double bound,
                const std::map<std::string, double>& noise) {
  std::vector<Check> tensors;
  for (TensorError& error : errors) {
    const auto it = noise.find(error.name);
    const double own = it == noise.end() ? 0 : it->second;
    hold(check, error.error, bound, own);
    hold(tensors.emplace_back(Check{.name = std::move(error.name), .measure = {}, .worst = {}}), error.error, bound,
         own);
  }
  std::stable_sort(tensors.begin(), tensors.end(), is_worse);
  tensors.resize(std::min(tensors.size(), kWorst));
  for (Check& tensor : tensors) check.worst.push_back({std::move(tensor.name), tensor.error});
}

/// Throws UserError unless both have the same tensors: otherwise the case belongs to another model.
void expect_same_tensors(const HostTensors& ours, const ReferenceTensors& reference, const std::string& file) {
  for (const auto& [name, tensor] : ours) {
    if (!reference.contains(name)) throw UserError("the case lacks the tensor '" + name + "'", file);
  }
  for (const auto& [name, tensor] : reference) {
    const auto it = ours.find(name);
    if (it == ours.end()) throw UserError("the case has a tensor '" + name + "' that the model does not have", file);
    if (!has_shape(tensor, it->second)) {
      throw UserError(fmt::format("'{}' has the shape {} in the case and {} in the model", name, shape_text(tensor),
                                  shape_text(it->second)),
                      file);
    }
  }
}

}  // namespace

double Check::of_bound() const { return ratio(error, bound); }

bool is_worse(const Check& a, const Check& b) {
  return std::isnan(a.error) ? !std::isnan(b.error) : a.of_bound() > b.of_bound();
}

Check compare_number(std::string name, double ours, double reference, double bound, double noise) {
  return compare_numbers(std::move(name), {&ours, 1}, {&reference, 1}, bound, {&noise, 1});
}

Check compare_numbers(std::string name, std::span<const double> ours, std::span<const double> reference, double bound,
                      std::span<const double> noise) {
  HONE_ASSERT(ours.size() == reference.size() && (noise.empty() || noise.size() == ours.size()));
  Check check{.name = std::move(name), .bound = bound, .measure = "relative", .worst = {}};
  for (size_t i = 0; i < ours.size(); ++i) {
    hold(check, ratio(std::abs(ours[i] - reference[i]), std::abs(reference[i])), bound, noise.empty() ? 0 : noise[i]);
  }
  return check;
}

Check compare_absolute(std::string name, std::span<const double> ours, std::span<const double> reference, double bound,
                       double noise) {
  HONE_ASSERT(ours.size() == reference.size());
  Check check{.name = std::move(name), .measure = "absolute", .worst = {}};
  double largest = 0;
  for (size_t i = 0; i < ours.size(); ++i) largest = worse(std::abs(ours[i] - reference[i]), largest);
  hold(check, largest, bound, noise);
  return check;
}

Check compare_logits(std::string name, std::span<const float> ours, std::span<const float> reference, double bound,
                     double noise) {
  HONE_ASSERT(ours.size() == reference.size());
  Check check{.name = std::move(name), .measure = "of the largest", .worst = {}};
  double error = 0, largest = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    error = worse(std::abs(static_cast<double>(ours[i]) - static_cast<double>(reference[i])), error);
    largest = worse(std::abs(static_cast<double>(reference[i])), largest);
  }
  hold(check, ratio(error, largest), bound, noise);
  return check;
}

Check compare_tokens(std::string name, std::span<const int32_t> ours, std::span<const int32_t> reference) {
  HONE_ASSERT(ours.size() == reference.size());
  Check check{.name = std::move(name), .bound = 0, .measure = "tokens that differ", .worst = {}};
  for (size_t i = 0; i < ours.size(); ++i) check.error += ours[i] != reference[i];
  return check;
}

std::vector<Check> compare_gradients(const std::string& name, const HostTensors& ours,
                                     const ReferenceTensors& reference, const std::string& file, double bound,
                                     const GradientNoise& noise) {
  expect_same_tensors(ours, reference, file);
  Check gradients{.name = name, .bound = bound, .measure = "of a tensor's norm", .worst = {}};
  Check zeros{.name = name + ", zeros", .bound = 0, .measure = "rows not zero", .worst = {}};
  const double smallest = kSmallGradient * norm_of_all(reference);
  std::vector<TensorError> errors;
  for (const auto& [key, expected] : reference) {
    const HostTensor& actual = ours.at(key);
    errors.push_back({key, ratio(distance(actual, expected), std::max(norm(expected), smallest))});
    zeros.error += static_cast<double>(nonzero_rows(actual, expected));
  }
  keep_worst(gradients, std::move(errors), bound, noise);
  return {gradients, zeros};
}

HostTensors changes(const HostTensors& initial, const HostTensors& final, const std::string& file) {
  expect_same_tensors(initial, {final.begin(), final.end()}, file);
  HostTensors result = final;
  for (auto& [key, tensor] : result) {
    const std::vector<float>& before = initial.at(key).values;
    for (size_t i = 0; i < before.size(); ++i) tensor.values[i] -= before[i];
  }
  return result;
}

std::vector<Check> compare_updates(const std::string& name, const HostTensors& ours, const ReferenceTensors& reference,
                                   const std::string& file, double bound, const ChangeNoise& noise) {
  expect_same_tensors(ours, reference, file);
  double elements = 0;
  for (const auto& [key, tensor] : ours) elements += static_cast<double>(tensor.values.size());
  Check all{.name = name, .bound = bound, .measure = "of the change", .worst = {}};
  Check tensors{.name = name + ", tensors", .bound = bound, .measure = "of a tensor's change", .worst = {}};
  const double size = norm_of_all(reference);
  std::vector<TensorError> errors;
  double sum = 0;
  for (const auto& [key, expected] : reference) {
    const HostTensor& actual = ours.at(key);
    const double error = distance(actual, expected);
    const double share = size * std::sqrt(static_cast<double>(actual.values.size()) / elements);
    errors.push_back({key, ratio(error, std::max(norm(expected), share))});
    sum += error * error;
  }
  hold(all, ratio(std::sqrt(sum), size), bound, noise.all);
  keep_worst(tensors, std::move(errors), bound, noise.tensors);
  return {all, tensors};
}

std::vector<TensorError> relative_errors(const HostTensors& ours, const ReferenceTensors& reference,
                                         const std::string& file) {
  expect_same_tensors(ours, reference, file);
  std::vector<TensorError> errors;
  for (const auto& [key, expected] : reference) {
    errors.push_back({key, ratio(distance(ours.at(key), expected), norm(expected))});
  }
  sort_worst(errors);
  return errors;
}

namespace {

/// 1 − the cosine of two vectors, from their norms and their distance: |a − b|² = |a|² + |b|² − 2 |a| |b| cos. A sketch
/// has no more of a tensor.
double cosine_loss(double a, double b, double apart) {
  return std::max(0.0, ratio(apart * apart - (a - b) * (a - b), 2.0 * a * b));
}

}  // namespace

std::vector<Check> compare_cosines(const std::string& name, const HostTensors& ours, const ReferenceTensors& reference,
                                   const std::string& file, double bound) {
  expect_same_tensors(ours, reference, file);
  std::vector<TensorError> losses;
  double our_squares = 0, reference_squares = 0, squares_apart = 0;
  for (const auto& [key, expected] : reference) {
    const double a = norm(ours.at(key)), b = norm(expected), apart = distance(ours.at(key), expected);
    losses.push_back({key, cosine_loss(a, b, apart)});
    our_squares += a * a;
    reference_squares += b * b;
    squares_apart += apart * apart;
  }
  sort_worst(losses);
  constexpr const char* kMeasure = "1 - cosine";
  const double together = cosine_loss(std::sqrt(our_squares), std::sqrt(reference_squares), std::sqrt(squares_apart));
  Check whole{.name = name, .error = together, .bound = bound, .measure = kMeasure, .worst = {}};
  Check middle{
      .name = name + ", the median tensor", .bound = bound, .measure = kMeasure, .required = false, .worst = {}};
  Check worst{.name = name + ", the worst tensor", .bound = bound, .measure = kMeasure, .required = false, .worst = {}};
  if (!losses.empty()) {
    middle.error = losses[losses.size() / 2].error;
    worst.error = losses.front().error;
    losses.resize(std::min(losses.size(), kWorst));
    worst.worst = std::move(losses);
  }
  return {whole, middle, worst};
}

}  // namespace hone
