#include "data/dataset/dataset_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/text/json.h"

namespace hone {

namespace {

constexpr double kMostUnsupervisedRows = 0.01;
constexpr double kLeastSupervised = 0.001, kMostSupervised = 0.999;

std::string causes_of(const DatasetReport& report) {
  std::string causes;
  for (const NothingLearnt& entry : report.nothing_learnt) {
    causes += fmt::format("{}{} row{}: {} (first: {})", causes.empty() ? "" : "; ", entry.rows, plural(entry.rows),
                          entry.cause, entry.first_where);
  }
  if (report.counts.too_long > 0) {
    causes += fmt::format("{}{} row{}: longer than max_length (the longest has {} tokens)", causes.empty() ? "" : "; ",
                          report.counts.too_long, plural(report.counts.too_long), report.lengths.max);
  }
  return causes;
}

}  // namespace

LengthSummary summarise_lengths(std::vector<int32_t> lengths) {
  if (lengths.empty()) return {};
  std::sort(lengths.begin(), lengths.end());
  const auto rank = [&](size_t percent) { return lengths[(lengths.size() * percent + 99) / 100 - 1]; };
  return {rank(50), rank(90), rank(99), lengths.back()};
}

LengthHistogram histogram_of(const std::vector<int32_t>& lengths, const LengthSummary& summary) {
  if (lengths.empty()) return {};
  const int64_t shortest = *std::min_element(lengths.begin(), lengths.end());
  constexpr int64_t kBins = 12;
  int64_t width = 1;
  for (int64_t digit = 0; width * kBins < summary.p99 - shortest + 1; ++digit)
    width = digit % 3 == 1 ? width / 2 * 5 : 2 * width;
  LengthHistogram bins;
  const int64_t begin = shortest / width * width;
  for (int64_t from = begin; from <= summary.p99; from += width) bins.push_back({from, from + width - 1});
  for (const int32_t length : lengths) {
    const auto bin = std::min(bins.size() - 1, static_cast<size_t>((length - begin) / width));
    ++bins[bin].rows;
    bins[bin].tokens += length;
  }
  bins.back().to = std::max(bins.back().to, summary.max);
  return bins;
}

std::string DatasetReport::unused_columns_text() const {
  constexpr size_t kMost = 20;
  std::string text;
  size_t count = 0;
  for (const std::string& column : unused_columns) {
    if (++count > kMost) break;
    text += (text.empty() ? "columns not used: " : ", ") + column;
  }
  if (count > kMost) text += ", …";
  for (const std::string& column : ignored_columns) {
    if (unused_columns.contains(column)) continue;
    text += fmt::format("{}ignore_columns names '{}', which no row has", text.empty() ? "" : "; ", column);
  }
  return text;
}

std::vector<std::string> DatasetReport::asked_otherwise_lines() const {
  const auto quoted = [](const std::string& text) {
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::vector<std::string> lines;
  for (const AskedOtherwise& entry : asked_otherwise) {
    lines.push_back(
        fmt::format("{} of {} answers ({:.1f} %) are trained on after {}, but the prompt ends with {} "
                    "(first: {}): {}",
                    entry.answers, answers, 100 * static_cast<double>(entry.answers) / static_cast<double>(answers),
                    quoted(entry.learnt), quoted(entry.asked), entry.first_where, entry.advice));
  }
  return lines;
}

int64_t DatasetReport::unsupervised_rows() const {
  int64_t sum = 0;
  for (const NothingLearnt& entry : nothing_learnt) sum += entry.rows;
  return sum;
}

double DatasetReport::supervised_share() const {
  return counts.tokens == 0 ? 0 : static_cast<double>(counts.supervised) / static_cast<double>(counts.tokens);
}

namespace {

/// Checks the shares of supervised rows and tokens; the errors may be tolerated.
void check_shares(const DatasetReport& report, bool masked) {
  constexpr const char* kOverride = "; data_checks: warn trains on it anyway";
  int64_t unexpected = 0;
  for (const NothingLearnt& entry : report.nothing_learnt) unexpected += entry.masked_by_data ? 0 : entry.rows;
  const double share = static_cast<double>(unexpected) / static_cast<double>(report.rows);
  if (share > kMostUnsupervisedRows) {
    throw UserError(
        fmt::format("{} of the {} rows ({:.1f} %) of '{}' have no supervised tokens: {}", unexpected, report.rows,
                    100 * share, report.name, causes_of(report)),
        report.path,
        std::string("repair or remove these rows (at most 1 % is allowed), or change train_on") + kOverride);
  }
  if (!masked || !is_chat(report.format)) return;
  const double supervised = report.supervised_share();
  if (supervised >= kLeastSupervised && supervised <= kMostSupervised) return;
  const std::string fix =
      supervised > kMostSupervised
          ? "to train on the whole text, set train_on: all"
          : "look at the mask with hone prepare --debug 3; if the answers are that short on purpose, write the rows as "
            "prompt and completion (lists of messages), which define what is trained on";
  throw UserError(
      fmt::format("{:.3f} % of the tokens of '{}' are supervised; a chat template that fits gives 0.1 % to 99.9 %",
                  100 * supervised, report.name),
      report.path, fix + kOverride);
}

/// What to change where no row is kept.
std::string fix_of_nothing_kept(const DatasetReport& report) {
  if (report.counts.too_long == 0) return "see train_on, max_length and overlength in docs/data.md";
  if (report.format == SampleFormat::kText) {
    return "set overlength: split, which makes several samples of a long text (overlength in docs/data.md)";
  }
  return fmt::format("set max_length: {}, or overlength: truncate_right, which shortens long rows (docs/data.md)",
                     report.lengths.max);
}

}  // namespace

std::string check_dataset(const DatasetReport& report, bool masked, bool tolerant) {
  if (report.rows == 0) throw UserError("the data set is empty", report.path, "it has no rows: check the path");
  if (report.counts.kept == 0) {
    throw UserError(fmt::format("the data set '{}' has no sample to train on: {}", report.name, causes_of(report)),
                    report.path, fix_of_nothing_kept(report));
  }
  try {
    check_shares(report, masked);
  } catch (const UserError& error) {
    if (!tolerant) throw;
    return error.message();
  }
  return {};
}

}  // namespace hone
