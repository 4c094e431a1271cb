// The rules by which a sweep ends runs early: the median rule, and successive halving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "report/page/record_lines.h"

namespace hone {

/// An evaluation after step 0.
struct Evaluation {
  int64_t step = 0;
  double loss = 0;
};

/// The evaluations in the metrics.jsonl of a run's folder.
class RunEvaluations {
 public:
  explicit RunEvaluations(const std::filesystem::path& folder);

  /// Those that there are now, as far as they can be read.
  const std::vector<Evaluation>& read_on();

 private:
  FollowedLines lines_;
  std::vector<Evaluation> evaluations_;
};

/// The least loss up to the first evaluation at `step` or later; nothing if there is none so late.
std::optional<double> loss_at(const std::vector<Evaluation>& run, int64_t step);

/// Successive halving (Jamieson and Talwalkar 2016): of these losses at a rung, which runs go on. That is the share
/// `keep` of them, rounded up, with the least losses; of equal ones the first.
std::vector<bool> better_part(const std::vector<double>& losses, double keep);

/// Ends a run whose least evaluation loss so far is above the median of what the runs before it had reached at the same
/// step (Golovin et al. 2017, the median stopping rule, with the least loss in the place of the running average).
class StopRule {
 public:
  /// Not before step `after`, and not before `kLeastOthers` runs reached that step.
  explicit StopRule(int64_t after) : after_(after) {}

  /// Adds a run that has finished or was ended.
  void add(std::vector<Evaluation> evaluations) { others_.push_back(std::move(evaluations)); }

  /// The median that the run was above at one of its evaluations; nothing if it may go on.
  std::optional<double> worse_than(const std::vector<Evaluation>& run) const;

  static constexpr size_t kLeastOthers = 3;

 private:
  /// The median of the least losses up to a step, over the runs that have reached it.
  std::optional<double> median_at(int64_t step) const;

  int64_t after_;
  std::vector<std::vector<Evaluation>> others_;
};

}  // namespace hone
