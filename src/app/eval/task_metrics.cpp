#include "app/eval/task_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "text/jinja/characters.h"
#include "text/utf8.h"

namespace hone {

namespace {

constexpr uint32_t kMostSteps = 5'000'000;  // for one match: half a second at most
constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
constexpr std::string_view kDigits = "0123456789";

/// As Python's str.lower().
std::string python_lower(const std::string& text) {
  std::string lower;
  for (size_t at = 0; at < text.size();) {
    const jinja::Character c = jinja::character_at(text, at);
    lower += jinja::lower_case(c.code);
    at += c.size;
  }
  return lower;
}

std::string without_any(std::string text, std::string_view characters) {
  std::erase_if(text, [&](char c) { return characters.find(c) != std::string_view::npos; });
  return text;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  for (const char c : python_lower(text)) {
    const bool belongs = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (belongs && !in_word) words.emplace_back();
    if (belongs) words.back() += c;
    in_word = belongs;
  }
  return words;
}

size_t longest_common(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<size_t> row(b.size() + 1, 0);
  for (const std::string& word : a) {
    size_t diagonal = 0;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = word == b[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

TaskPattern::TaskPattern(const std::string& pattern, std::string option)
    : pattern_(pattern), option_(std::move(option)) {
  try {
    expression_ = std::make_shared<const Pcre>(Pcre::of_user(pattern));
  } catch (const PcreError& error) {
    throw UserError(fmt::format("'{}' is not a regular expression: {}", pattern, error.what()), option_,
                    R"(write one such as '#### (\-?[0-9.,]+)')");
  }
}

std::vector<std::vector<PcreMatcher::Range>> TaskPattern::matches(const std::string& text) const {
  try {
    return PcreMatcher(*expression_, kMostSteps).find_all(text);
  } catch (const PcreError& error) {
    throw UserError(fmt::format("'{}' fails on a text: {}", pattern_, error.what()), option_,
                    "write an expression with less backtracking");
  }
}

std::optional<std::string> TaskPattern::find(const std::string& given, int select) const {
  const std::string text = repair_utf8(given);
  const auto all = matches(text);
  const auto count = static_cast<int64_t>(all.size());
  const int64_t index = select < 0 ? count + select : select;
  if (index < 0 || index >= count) return std::nullopt;
  const std::vector<PcreMatcher::Range>& match = all[static_cast<size_t>(index)];
  // A single group may be empty, as in findall(); of several the first that is not counts.
  if (match.size() <= 2) return stripped(text.substr(match.back().begin, match.back().size()));
  for (size_t i = 1; i < match.size(); ++i) {
    if (match[i].size() > 0) return stripped(text.substr(match[i].begin, match[i].size()));
  }
  return std::nullopt;
}

std::string TaskPattern::without(const std::string& given) const {
  const std::string text = repair_utf8(given);
  std::string rest;
  size_t from = 0;
  for (const std::vector<PcreMatcher::Range>& match : matches(text)) {
    rest += text.substr(from, match.front().begin - from);
    from = match.front().end;
  }
  return rest + text.substr(from);
}

bool exact_match(const std::string& answer, const std::string& reference, const ExactMatchOptions& options) {
  const auto normal = [&](std::string text) {
    for (const TaskPattern& pattern : options.regexes_to_ignore) text = pattern.without(text);
    if (options.ignore_case) text = python_lower(text);
    if (options.ignore_punctuation) text = without_any(std::move(text), kPunctuation);
    if (options.ignore_numbers) text = without_any(std::move(text), kDigits);
    return text;
  };
  return normal(answer) == normal(reference);
}

double rouge_l(const std::string& answer, const std::string& reference) {
  const std::vector<std::string> ours = words_of(answer), theirs = words_of(reference);
  const auto common = static_cast<double>(longest_common(ours, theirs));
  if (common == 0) return 0;
  const double precision = common / static_cast<double>(ours.size());
  const double recall = common / static_cast<double>(theirs.size());
  return 2 * precision * recall / (precision + recall);
}

size_t likeliest(std::span<const double> log_likelihoods, std::span<const size_t> lengths) {
  HONE_ASSERT(!log_likelihoods.empty() && (lengths.empty() || lengths.size() == log_likelihoods.size()));
  const auto value = [&](size_t i) {
    return lengths.empty() ? log_likelihoods[i] : log_likelihoods[i] / static_cast<double>(lengths[i]);
  };
  size_t best = 0;
  for (size_t i = 1; i < log_likelihoods.size(); ++i) {
    if (value(i) > value(best)) best = i;
  }
  return best;
}

std::string stripped(const std::string& text) {
  const jinja::Trimmed part = jinja::trim(text, nullptr, true, true);
  return text.substr(part.begin, part.end - part.begin);
}

size_t character_count(const std::string& text) { return jinja::count_characters(text); }

MeanOfRows mean_of(std::span<const double> values) {
  MeanOfRows result;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) result.mean += value;
  result.mean /= std::max(count, 1.0);
  if (values.size() < 2) return result;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.stderr_of_mean = std::sqrt(squares / (count - 1) / count);
  return result;
}

}  // namespace hone
