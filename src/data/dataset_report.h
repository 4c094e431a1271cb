// What became of the rows of a data set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sample_format.h"
#include "data/sample_store.h"

namespace hone {

/// Lengths in tokens of all rows, before anything is cut or dropped. Percentiles by nearest rank.
struct LengthSummary {
  int64_t p50 = 0, p90 = 0, p99 = 0, max = 0;
};

LengthSummary summarise_lengths(std::vector<int32_t> lengths);

/// Rows of which nothing is learnt, by cause.
struct NothingLearnt {
  std::string cause;
  int64_t rows = 0;
  std::string first_where;      ///< file:line
  bool masked_by_data = false;  ///< the rows themselves say so
};

struct DatasetReport {
  std::string name, path;
  SampleFormat format = SampleFormat::kAuto;
  std::string decision;  ///< how the format was found; empty: it was stated
  int64_t rows = 0;
  /// Of the samples of this data set; kept, tokens and supervised count what is trained (or evaluated) on, the
  /// validation split included.
  SampleStore::Counts counts;
  LengthSummary lengths;
  std::vector<NothingLearnt> nothing_learnt;

  /// Rows of which nothing is learnt.
  int64_t unsupervised_rows() const;
  /// Of all kept tokens; 0 if there are none.
  double supervised_share() const;
};

/// Throws UserError, naming causes and the first file:line of each, if a data set is no ground to train on: it is
/// empty; nothing is kept; nothing is learnt of more than 1 % of its rows (rows that say so themselves aside); or, of
/// chats with `masked` (train_on is not all), less than 0.1 % or more than 99.9 % of its tokens are supervised, which
/// is how a template and a mask that do not fit show.
void check_dataset(const DatasetReport& report, bool masked);

}  // namespace hone
