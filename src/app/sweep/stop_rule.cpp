#include "app/sweep/stop_rule.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

namespace {

constexpr size_t kLongestLine = size_t{1} << 20;

/// The least loss up to a step, if the run has got there.
std::optional<double> least_until(const std::vector<Evaluation>& run, int64_t step) {
  if (run.empty() || run.back().step < step) return std::nullopt;
  std::optional<double> least;
  for (const Evaluation& evaluation : run) {
    if (evaluation.step <= step && (!least || evaluation.loss < *least)) least = evaluation.loss;
  }
  return least;
}

}  // namespace

RunEvaluations::RunEvaluations(const std::filesystem::path& folder) : lines_(folder / "metrics.jsonl", kLongestLine) {}

const std::vector<Evaluation>& RunEvaluations::read_on() {
  try {
    lines_.read_on([this] { evaluations_.clear(); },
                   [this](std::string_view line) {
                     if (line.find("\"eval_loss\"") == std::string_view::npos) return;
                     const Json row = parse_json(line);
                     if (!row.is_object()) return;
                     const auto step = whole_number<int64_t>(row.value("step", Json()));
                     const Json loss = row.value("eval_loss", Json());
                     // One that is not finite is null: the worst there is.
                     const double value = loss.is_number() ? loss.get<double>() : INFINITY;
                     if (step && *step > 0) evaluations_.push_back({*step, value});
                   });
  } catch (const UserError&) {  // then there are none
  }
  return evaluations_;
}

std::optional<double> loss_at(const std::vector<Evaluation>& run, int64_t step) {
  const auto late = [&](const Evaluation& evaluation) { return evaluation.step >= step; };
  const auto at = std::find_if(run.begin(), run.end(), late);
  return at == run.end() ? std::nullopt : least_until(run, at->step);
}

std::vector<bool> better_part(const std::vector<double>& losses, double keep) {
  std::vector<size_t> order(losses.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return losses[a] < losses[b]; });
  const auto count = static_cast<size_t>(std::ceil(keep * static_cast<double>(losses.size()) - 1e-9));
  std::vector<bool> goes_on(losses.size());
  for (size_t i = 0; i < std::min(count, order.size()); ++i) goes_on[order[i]] = true;
  return goes_on;
}

std::optional<double> StopRule::worse_than(const std::vector<Evaluation>& run) const {
  for (const Evaluation& evaluation : run) {
    if (evaluation.step < after_) continue;
    const std::optional<double> median = median_at(evaluation.step);
    if (median && *least_until(run, evaluation.step) > *median) return median;
  }
  return std::nullopt;
}

std::optional<double> StopRule::median_at(int64_t step) const {
  std::vector<double> reached;
  for (const std::vector<Evaluation>& other : others_) {
    if (const std::optional<double> least = least_until(other, step)) reached.push_back(*least);
  }
  if (reached.size() < kLeastOthers) return std::nullopt;
  std::sort(reached.begin(), reached.end());
  const size_t half = reached.size() / 2;
  return reached.size() % 2 == 1 ? reached[half] : (reached[half - 1] + reached[half]) / 2;
}

}  // namespace hone
