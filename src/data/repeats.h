// Rows that say the same twice: duplicates in the training data, and validation rows that are trained on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset_builder.h"

namespace hone {

/// A row and the earlier (or trained) one whose text it has.
struct RepeatedRow {
  std::string where, first_where;  ///< file:line
};

struct Repeats {
  int64_t rows = 0;                   ///< that were looked at
  int64_t repeated = 0;               ///< of them, those whose text was there before
  std::vector<RepeatedRow> examples;  ///< the first two
};

/// Rows of the training data whose text, white space aside (data/text_key.h), an earlier one has. Rows that were
/// dropped do not count; the parts of a split row are one.
Repeats find_duplicates(const TrainingData& data);

/// Rows of the validation data whose text is in the training data.
Repeats find_leaks(const TrainingData& data);

/// "file:line" of a sample; `reports` are those of its store (of a validation split, those of the training data).
std::string where_of(const SampleView& sample, const std::vector<DatasetReport>& reports);

/// The reports that the samples of the evaluation store point into.
const std::vector<DatasetReport>& reports_of_eval(const TrainingData& data);

}  // namespace hone
