#include "data/dataset/dataset_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/formats/row_columns.h"
#include "data/readers/byte_reader.h"
#include "data/readers/csv_reader.h"
#include "data/readers/jsonl_reader.h"
#include "data/readers/parquet_reader.h"

namespace hone {

namespace {

constexpr int64_t kDetectionRows = 8;
constexpr int64_t kAllRows = std::numeric_limits<int64_t>::max();

}  // namespace

FormattedRow read_row(const DatasetRow& row, const ColumnMapping& mapping, std::vector<std::string>* unread) {
  const bool plain_text = row.raw.syntax == RowSyntax::kText;
  const Json parsed = parse_row(row.raw);
  const std::string where = row.where();
  if (plain_text) return format_row(parsed, row.format, where);
  refuse_contrary_columns(parsed, row.format, where, mapping);
  return format_row(parsed, row.format, where, mapping, unread);
}

std::unique_ptr<RowReader> open_rows(const std::string& file, const DatasetFiles& files, const ColumnMapping& mapping,
                                     std::optional<char> delimiter) {
  switch (kind_of_file(file)) {
    case FileKind::kCsv:
      return std::make_unique<CsvReader>(file, delimiter);
    case FileKind::kText:
      return std::make_unique<TextReader>(file);
    case FileKind::kParquet:
      return open_parquet(file);
    case FileKind::kJson:
    case FileKind::kOther:
      break;
  }
  JsonlReader::Options options;
  options.table = files.table;
  if (const std::string* messages = mapping.column("messages")) options.columns = {*messages};
  return std::make_unique<JsonlReader>(file, options);
}

DatasetReader::DatasetReader(const DatasetEntry& entry, TokenCounter count_tokens)
    : entry_(entry), most_(entry.samples.value_or(kAllRows)) {
  if (entry.code) {
    if (!count_tokens) throw UserError("source code needs a tokenizer", entry.path, "the model's folder has none");
    code_ = std::make_unique<CodeReader>(entry.path, *entry.code, std::move(count_tokens));
    bytes_total_ = code_->bytes_total();
    return;
  }
  files_ = files_of_dataset(entry.path, entry.split, entry.name);
  const auto is_csv = [](const std::string& file) { return kind_of_file(file) == FileKind::kCsv; };
  if (entry.delimiter && std::none_of(files_.files.begin(), files_.files.end(), is_csv)) {
    throw UserError("delimiter is set, but the data set has no CSV file", entry.path, "remove it");
  }
  for (const std::string& file : files_.files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    sizes_.push_back(error ? 0 : static_cast<int64_t>(size));
    bytes_total_ += sizes_.back();
  }
  choose_rows();
}

void DatasetReader::choose_rows() {
  const SplitSlice split = parse_split(entry_.split);
  if (!split.sliced) return;
  int64_t total = kAllRows;
  if (split.needs_count()) {
    total = 0;
    for (const std::string& file : files_.files) {
      const std::unique_ptr<RowReader> rows = open_rows(file, files_, entry_.mapping, entry_.delimiter);
      for (RawRow row; rows->next(row);) ++total;
    }
  }
  slice_ = split.range(total);
  if (slice_.begin >= slice_.end) {
    throw UserError(fmt::format("the split '{}' selects no row{}", entry_.split,
                                total == kAllRows ? "" : fmt::format(" of {}", total)),
                    entry_.path, "choose rows that the data set has");
  }
  most_ = std::min(most_, slice_.end - slice_.begin);
}

bool DatasetReader::open_next() {
  if (open_) bytes_before_ += sizes_[next_file_ - 1];
  open_.reset();
  if (next_file_ == files_.files.size()) return false;
  open_ = open_rows(files_.files[next_file_++], files_, entry_.mapping, entry_.delimiter);
  peek_rows();
  return true;
}

void DatasetReader::peek_rows() {
  // No row after the last one that is used is parsed: it may be of another kind.
  const int64_t before = std::min(kDetectionRows, slice_.begin - skipped_);
  const int64_t most = std::min(kDetectionRows, before + std::min(kDetectionRows, most_ - rows_));
  std::vector<LocatedRow> rows;
  const bool parse = entry_.format == SampleFormat::kAuto || !entry_.mapping.mapped_columns().empty();
  for (RawRow raw; parse && std::ssize(peeked_) < most && open_->next(raw);) {
    peeked_.push_back(raw);
    if (raw.syntax != RowSyntax::kText) rows.push_back({parse_row(raw), raw.where()});
  }
  check_columns(rows);
  if (entry_.format != SampleFormat::kAuto) {
    if (!rows.empty()) check_mapping(entry_.format, entry_.mapping, rows.front().where);
    format_ = entry_.format;
  } else if (!rows.empty()) {
    const DetectedFormat detected = detect_format(rows, entry_.mapping);
    decide(detected.format, detected.reason);
  } else if (!peeked_.empty()) {
    decide(SampleFormat::kText, fmt::format("plain text in {}", peeked_.front().where()));
  }
}

void DatasetReader::decide(SampleFormat format, const std::string& reason) {
  format_ = format;
  for (Decision& decision : decisions_) {
    if (decision.format != format) continue;
    ++decision.files;
    return;
  }
  decisions_.push_back({format, reason, 1});
}

void DatasetReader::check_columns(const std::vector<LocatedRow>& rows) const {
  if (rows.empty()) return;
  const bool fixed = peeked_.front().syntax == RowSyntax::kCsv;
  Json all = Json::object();
  for (const LocatedRow& row : rows) {
    for (const auto& [column, value] : row.row->items()) all[column] = nullptr;
  }
  for (const std::string_view name : entry_.mapping.mapped_columns()) {
    const std::string& column = *entry_.mapping.column(name);
    const std::string hint = nearest_column(all, column);
    if (all.contains(column) || (!fixed && hint.empty())) continue;
    throw UserError(fmt::format("the column '{}' is missing, which column_mapping reads as {}", column, name),
                    rows.front().where, fmt::format("the columns are: {}.{}", column_names(all), hint));
  }
}

void DatasetReader::finish() const {
  if (rows_ == 0) return;
  const std::vector<std::string> absent = entry_.mapping.never_found();
  if (absent.empty()) return;
  throw UserError(fmt::format("no row has the column '{}', which column_mapping names", absent.front()), entry_.path,
                  "remove it from column_mapping, or correct the name of the column");
}

bool DatasetReader::next_code(RawRow& raw) {
  CodeReader::Sample sample;
  if (!code_->next(sample)) return false;
  raw = {std::move(sample.text), std::move(sample.file), sample.line, RowSyntax::kText, {}};
  return true;
}

bool DatasetReader::next(DatasetRow& row) {
  if (rows_ >= most_) return false;
  if (code_) {
    row.format = SampleFormat::kText;
    if (!next_code(row.raw)) return false;
    ++rows_;
    return true;
  }
  for (; skipped_ < slice_.begin; ++skipped_) {
    if (!next_in_files(row)) return false;
  }
  if (!next_in_files(row)) return false;
  ++rows_;
  return true;
}

bool DatasetReader::next_in_files(DatasetRow& row) {
  while (true) {
    if (!peeked_.empty()) {
      row.raw = std::move(peeked_.front());
      peeked_.pop_front();
    } else if (!open_ || !open_->next(row.raw)) {
      if (open_next()) continue;
      return false;
    }
    row.format = format_;
    return true;
  }
}

SampleFormat DatasetReader::format() const {
  if (entry_.format != SampleFormat::kAuto) return entry_.format;
  return decisions_.size() == 1 ? decisions_.front().format : SampleFormat::kAuto;
}

std::string DatasetReader::decision() const {
  if (code_) return code_->statistics().to_text("; ");
  std::string text;
  for (const Decision& decision : decisions_) {
    text += text.empty() ? "" : "; ";
    if (decisions_.size() > 1) text += fmt::format("{}: ", name_of(decision.format));
    text += decision.reason;
    if (decision.files > 1) text += fmt::format(" and {} more files", decision.files - 1);
  }
  if (!files_.not_read.empty()) {
    text += fmt::format("{}not read: {}", text.empty() ? "" : "; ", fmt::join(files_.not_read, ", "));
  }
  return text;
}

}  // namespace hone
