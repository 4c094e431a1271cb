// DatasetReport: statistics of the rows of a data set, and checks on them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/formats/sample_format.h"
#include "data/formats/token_block.h"

namespace hone {

/// Lengths in tokens of all rows before truncation and dropping. Percentiles by nearest rank.
struct LengthSummary {
  int64_t p50 = 0, p90 = 0, p99 = 0, max = 0;
};

LengthSummary summarise_lengths(std::vector<int32_t> lengths);

/// A bin of a length histogram.
struct LengthBin {
  int64_t from = 0, to = 0;  ///< tokens, [from, to]
  int64_t rows = 0, tokens = 0;
};
using LengthHistogram = std::vector<LengthBin>;

/// Bins of one width, 1, 2 or 5 times a power of ten, up to the 99th percentile: at most 13. The last one also contains
/// all longer rows.
LengthHistogram histogram_of(const std::vector<int32_t>& lengths, const LengthSummary& summary);

/// The report of a data set. The counts of kept samples, their tokens and supervised tokens include the validation
/// split.
struct DatasetReport : RowsReport {
  std::string name, path;
  SampleFormat format = SampleFormat::kAuto;
  std::string decision;  ///< the reason for the format; empty if it was configured
  LengthSummary lengths;
  LengthHistogram histogram;
  std::vector<std::string> files;            ///< by SampleOrigin::file
  std::vector<std::string> ignored_columns;  ///< those of ignore_columns

  /// "columns not used: id, label; ignore_columns names 'rejectd', which no row has"; may be empty.
  std::string unused_columns_text() const;
  /// One line for each difference between the prompt in training and at inference, with the share of answers.
  std::vector<std::string> asked_otherwise_lines() const;

  /// Number of rows without supervised tokens.
  int64_t unsupervised_rows() const;
  /// Supervised tokens as a fraction of all kept tokens; 0 if there are none.
  double supervised_share() const;
};

/// Throws UserError with the causes and the first file:line of each if a data set is not fit for training: it is empty,
/// or no row is kept. Unless `tolerant`, it also throws if more than 1 % of its rows have no supervised tokens (except
/// rows that are masked by the data), or if in chats with `masked` (train_on is not all) less than 0.1 % or more than
/// 99.9 % of the tokens are supervised: template and mask do not match. Returns the tolerated errors.
std::string check_dataset(const DatasetReport& report, bool masked, bool tolerant);

}  // namespace hone
