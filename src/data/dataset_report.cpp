#include "data/dataset_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"

namespace hone {

namespace {

constexpr double kMostUnsupervisedRows = 0.01;
constexpr double kLeastSupervised = 0.001, kMostSupervised = 0.999;

std::string causes_of(const DatasetReport& report) {
  std::string causes;
  for (const NothingLearnt& entry : report.nothing_learnt) {
    causes += fmt::format("{}{} rows: {} (first: {})", causes.empty() ? "" : "; ", entry.rows, entry.cause,
                          entry.first_where);
  }
  if (report.counts.too_long > 0) {
    causes += fmt::format("{}{} rows: longer than max_length (the longest has {} tokens)", causes.empty() ? "" : "; ",
                          report.counts.too_long, report.lengths.max);
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

int64_t DatasetReport::unsupervised_rows() const {
  int64_t sum = 0;
  for (const NothingLearnt& entry : nothing_learnt) sum += entry.rows;
  return sum;
}

double DatasetReport::supervised_share() const {
  return counts.tokens == 0 ? 0 : static_cast<double>(counts.supervised) / static_cast<double>(counts.tokens);
}

void check_dataset(const DatasetReport& report, bool masked) {
  if (report.rows == 0) throw UserError("the data set is empty", report.path, "it holds no row: check the path");
  if (report.counts.kept == 0) {
    throw UserError(fmt::format("there is nothing to learn in the data set '{}': {}", report.name, causes_of(report)),
                    report.path, "see train_on, max_length and overlength in docs/data.md");
  }
  int64_t unexpected = 0;
  for (const NothingLearnt& entry : report.nothing_learnt) unexpected += entry.masked_by_data ? 0 : entry.rows;
  const double share = static_cast<double>(unexpected) / static_cast<double>(report.rows);
  if (share > kMostUnsupervisedRows) {
    throw UserError(fmt::format("nothing would be learnt of {} of the {} rows ({:.1f} %) of '{}': {}", unexpected,
                                report.rows, 100 * share, report.name, causes_of(report)),
                    report.path, "repair or remove these rows (at most 1 % may be like that), or change train_on");
  }
  if (!masked || !is_chat(report.format)) return;
  const double supervised = report.supervised_share();
  if (supervised >= kLeastSupervised && supervised <= kMostSupervised) return;
  throw UserError(
      fmt::format("{:.3f} % of the tokens of '{}' are supervised; a chat template that fits gives 0.1 % to 99.9 %",
                  100 * supervised, report.name),
      report.path,
      supervised > kMostSupervised
          ? "if all of the text is to be learnt, say train_on: all"
          : "look at the mask with train --dry-run; if answers are meant to be that short, write the rows as prompt "
            "and completion (lists of messages), which say themselves what is learnt");
}

}  // namespace hone
