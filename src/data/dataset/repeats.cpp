#include "data/dataset/repeats.h"

#include <algorithm>

#include "data/readers/dataset_files.h"
#include "data/readers/raw_row.h"

namespace hone {

namespace {

constexpr size_t kExamples = 2;

/// The key of a row's text, and the position of its first sample in the store.
struct KeyedRow {
  uint64_t key;
  int64_t position;

  auto operator<=>(const KeyedRow&) const = default;
};

std::vector<KeyedRow> rows_of(const SampleStore& store) {
  std::vector<KeyedRow> rows;
  rows.reserve(static_cast<size_t>(store.size()));
  int64_t row = -1;
  int32_t dataset = -1;
  for (int64_t i = 0; i < store.size(); ++i) {
    const SampleView sample = store[i];
    if (sample.origin.row == row && sample.dataset == dataset) continue;
    row = sample.origin.row;
    dataset = sample.dataset;
    rows.push_back({sample.text_key, i});
  }
  return rows;
}

}  // namespace

std::string where_of(const SampleView& sample, const std::vector<DatasetReport>& reports) {
  const DatasetReport& report = reports[static_cast<size_t>(sample.dataset)];
  RawRow row;
  row.file = report.files[static_cast<size_t>(sample.origin.file)];
  row.line = sample.origin.line;
  const FileKind kind = kind_of_file(row.file);
  row.syntax = kind == FileKind::kParquet ? RowSyntax::kParquet
               : kind == FileKind::kText  ? RowSyntax::kText
                                          : RowSyntax::kJson;
  return row.where();
}

const std::vector<DatasetReport>& reports_of_eval(const TrainingData& data) {
  return data.eval_reports.empty() ? data.train_reports : data.eval_reports;
}

Repeats find_duplicates(const TrainingData& data) {
  std::vector<KeyedRow> rows = rows_of(data.train);
  Repeats found;
  found.rows = static_cast<int64_t>(rows.size());
  std::sort(rows.begin(), rows.end());
  struct Pair {
    int64_t position, first;
  };
  std::vector<Pair> repeated;
  size_t first = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].key != rows[first].key) {
      first = i;
    } else {
      repeated.push_back({rows[i].position, rows[first].position});
    }
  }
  found.repeated = static_cast<int64_t>(repeated.size());
  const size_t shown = std::min(kExamples, repeated.size());
  std::partial_sort(repeated.begin(), repeated.begin() + static_cast<std::ptrdiff_t>(shown), repeated.end(),
                    [](const Pair& a, const Pair& b) { return a.position < b.position; });
  for (size_t i = 0; i < shown; ++i) {
    found.examples.push_back({where_of(data.train[repeated[i].position], data.train_reports),
                              where_of(data.train[repeated[i].first], data.train_reports)});
  }
  return found;
}

Repeats find_leaks(const TrainingData& data) {
  const std::vector<KeyedRow> eval = rows_of(data.eval);
  Repeats found;
  found.rows = static_cast<int64_t>(eval.size());
  if (eval.empty()) return found;
  std::vector<KeyedRow> train = rows_of(data.train);
  std::sort(train.begin(), train.end());
  for (const KeyedRow& row : eval) {
    const auto trained = std::lower_bound(train.begin(), train.end(), KeyedRow{row.key, 0});
    if (trained == train.end() || trained->key != row.key) continue;
    ++found.repeated;
    if (found.examples.size() == kExamples) continue;
    found.examples.push_back({where_of(data.eval[row.position], reports_of_eval(data)),
                              where_of(data.train[trained->position], data.train_reports)});
  }
  return found;
}

}  // namespace hone
