// What became of the rows of a data set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sample_format.h"
#include "data/token_block.h"

namespace hone {

/// Lengths in tokens of all rows, before anything is cut or dropped. Percentiles by nearest rank.
struct LengthSummary {
  int64_t p50 = 0, p90 = 0, p99 = 0, max = 0;
};

LengthSummary summarise_lengths(std::vector<int32_t> lengths);

/// Rows by length.
struct LengthBin {
  int64_t from = 0, to = 0;  ///< tokens, [from, to]
  int64_t rows = 0, tokens = 0;
};
using LengthHistogram = std::vector<LengthBin>;

/// Bins of one width, 1, 2 or 5 times a power of ten, up to the 99th percentile: at most 13. The last one has
/// everything longer, too.
LengthHistogram histogram_of(const std::vector<int32_t>& lengths, const LengthSummary& summary);

/// What became of the rows of a data set. The counts of kept samples, their tokens and supervised tokens are of all
/// that is trained (or evaluated) on, the validation split included.
struct DatasetReport : RowsReport {
  std::string name, path;
  SampleFormat format = SampleFormat::kAuto;
  std::string decision;  ///< how the format was found; empty: it was stated
  LengthSummary lengths;
  LengthHistogram histogram;
  std::vector<std::string> files;            ///< by SampleOrigin::file
  std::vector<std::string> ignored_columns;  ///< what ignore_columns names

  /// "columns not used: id, label; ignore_columns names 'rejectd', which no row has"; empty if there is nothing to say.
  std::string unused_columns_text() const;
  /// A line for each way in which answers are asked for otherwise than they are learnt, with their share.
  std::vector<std::string> asked_otherwise_lines() const;

  /// Rows of which nothing is learnt.
  int64_t unsupervised_rows() const;
  /// Of all kept tokens; 0 if there are none.
  double supervised_share() const;
};

/// Throws UserError, naming causes and the first file:line of each, if a data set is no ground to train on: it is
/// empty, or nothing is kept; and, unless `tolerant`, if nothing is learnt of more than 1 % of its rows (rows that say
/// so themselves aside), or, of chats with `masked` (train_on is not all), less than 0.1 % or more than 99.9 % of its
/// tokens are supervised, which is how a template and a mask that do not fit show. Returns what was tolerated.
std::string check_dataset(const DatasetReport& report, bool masked, bool tolerant);

}  // namespace hone
