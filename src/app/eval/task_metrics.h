// What a task measures of one row, with the definitions of lm-evaluation-harness and of the package rouge_score: exact
// match, ROUGE-L, and the choice of the likeliest continuation.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/named_choice.h"
#include "core/text/pcre.h"

namespace hone {

enum class TaskMetric {
  kExactMatch,  ///< the answer is the reference
  kRougeL,      ///< F-measure of their longest common subsequence of words
  kAcc,         ///< the likeliest choice is the right one
  kAccNorm,     ///< the same with the log-likelihood per character of the choice
  kAccBytes,    ///< the same per byte of it
};

/// The names of lm-evaluation-harness.
template <>
inline constexpr std::array kChoiceNames<TaskMetric> = {ChoiceName<TaskMetric>{TaskMetric::kExactMatch, "exact_match"},
                                                        ChoiceName<TaskMetric>{TaskMetric::kRougeL, "rougeL"},
                                                        ChoiceName<TaskMetric>{TaskMetric::kAcc, "acc"},
                                                        ChoiceName<TaskMetric>{TaskMetric::kAccNorm, "acc_norm"},
                                                        ChoiceName<TaskMetric>{TaskMetric::kAccBytes, "acc_bytes"}};

/// Whether the metric is of multiple choice, by likelihood; else it is of generated answers.
constexpr bool is_of_choices(TaskMetric metric) {
  return metric != TaskMetric::kExactMatch && metric != TaskMetric::kRougeL;
}

/// A regular expression of the command line, applied to texts of models and data with limits on time and memory.
class TaskPattern {
 public:
  /// UserError at `option` if it does not compile.
  TaskPattern(const std::string& pattern, std::string option);

  /// What match number `select` (0: the first, -1: the last) says: its first group that is not empty, or the whole
  /// match if there are no groups, without white space at its ends. Nothing if there is no such match, or all its
  /// groups are empty. Source: RegexFilter of lm-evaluation-harness. UserError if the search exceeds a limit.
  std::optional<std::string> find(const std::string& text, int select) const;
  /// The text without its matches.
  std::string without(const std::string& text) const;

 private:
  std::vector<std::vector<PcreMatcher::Range>> matches(const std::string& text) const;

  std::string pattern_, option_;
  std::shared_ptr<const Pcre> expression_;
};

/// What is left out of two texts before exact_match compares them, in this order.
struct ExactMatchOptions {
  std::vector<TaskPattern> regexes_to_ignore = {};
  bool ignore_case = false;         ///< both in lower case, all of Unicode
  bool ignore_punctuation = false;  ///< without !"#$%&'()*+,-./:;<=>?@[\]^_`{|}~
  bool ignore_numbers = false;      ///< without the digits 0 to 9
};

/// Whether the texts are equal. Nothing else is left out: strip() them first.
bool exact_match(const std::string& answer, const std::string& reference, const ExactMatchOptions& options);

/// The F-measure of ROUGE-L: 2PR / (P + R) of the words' longest common subsequence, 0 without one. Words are runs of
/// a to z and digits of the text in lower case; no stemmer. Source: Lin, "ROUGE" (2004), section 3, sentence level,
/// with the tokenizer of rouge_score.
double rouge_l(const std::string& answer, const std::string& reference);

/// The index of the largest log-likelihood; of equal ones the first. `lengths`, if not empty: each is divided by its
/// own.
size_t likeliest(std::span<const double> log_likelihoods, std::span<const size_t> lengths = {});

/// The text without white space at its ends.
std::string stripped(const std::string& text);
/// The number of Unicode characters, as Python's len().
size_t character_count(const std::string& text);

/// A mean and its standard error, sqrt(Σ (x - mean)² / (n - 1) / n); nothing of one value.
struct MeanOfRows {
  double mean = 0;
  std::optional<double> stderr_of_mean;
};
MeanOfRows mean_of(std::span<const double> values);

}  // namespace hone
