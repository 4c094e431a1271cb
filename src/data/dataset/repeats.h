// Repeated rows: duplicates in the training data, and validation rows that are also in the training data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset/dataset_builder.h"

namespace hone {

/// A row and the earlier (or training) row with the same text.
struct RepeatedRow {
  std::string where, first_where;  ///< file:line
};

struct Repeats {
  int64_t rows = 0;                   ///< rows compared
  int64_t repeated = 0;               ///< rows whose text occurred before
  std::vector<RepeatedRow> examples;  ///< the first two
};

/// Finds training rows with the text of an earlier row, ignoring white space (data/formats/text_key.h). Ignores dropped
/// rows; the parts of a split row are one row.
Repeats find_duplicates(const TrainingData& data);

/// Finds validation rows whose text is in the training data.
Repeats find_leaks(const TrainingData& data);

/// "file:line" of a sample. `reports` are those of its store; for a validation split those of the training data.
std::string where_of(const SampleView& sample, const std::vector<DatasetReport>& reports);

/// The reports that the samples of the evaluation store refer to.
const std::vector<DatasetReport>& reports_of_eval(const TrainingData& data);

}  // namespace hone
