#include "data/dataset_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "data/dataset_reader.h"
#include "data/sample_encoder.h"
#include "text/stream_decoder.h"

namespace hone {

namespace {

/// Rows that are parsed and encoded together: enough for all threads, few enough to bound memory.
constexpr size_t kBatchRows = 2048;
constexpr size_t kBatchBytes = size_t{32} << 20;
constexpr uint64_t kValidationDraw = 0x76616c;  // the use of data_seed

/// Names by entry: those stated, and from the paths, with a number where two would be alike.
std::vector<std::string> names_of(const std::vector<DatasetEntry>& entries) {
  std::vector<std::string> names;
  for (const DatasetEntry& entry : entries) names.push_back(entry.name);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!entries[i].name.empty()) {
      if (std::count(names.begin(), names.end(), names[i]) == 1) continue;
      throw UserError(fmt::format("two data sets have the name '{}'", names[i]), entries[i].path,
                      "give each data set a name of its own");
    }
    const std::string base = name_from_path(entries[i].path);
    std::string name = base;
    for (int number = 2; std::count(names.begin(), names.end(), name) > 0; ++number) {
      name = fmt::format("{}_{}", base, number);
    }
    names[i] = name;
  }
  return names;
}

/// What is told once for all rows that share it.
struct Notice {
  std::string text;
  int64_t rows = 0;
  std::string first_where;
};

std::string rewritten_text(HistoryRewrites policy) {
  return std::string("the template shows answers otherwise once the conversation goes on (dropped thoughts): ") +
         (policy == HistoryRewrites::kExpand ? "they are learnt in samples of their own, which end with them "
                                               "(history_rewrites: expand)"
                                             : "these are not learnt (history_rewrites: mask)");
}

class DatasetBuilder {
 public:
  DatasetBuilder(BuiltStore& built, const SampleEncoder& encoder, const Tokenizer* tokenizer,
                 const DataOptions& options, ThreadPool& pool, const DataProgressCallback& progress)
      : built_(built), encoder_(encoder), tokenizer_(tokenizer), options_(options), pool_(pool), progress_(progress) {}

  void read(const DatasetEntry& entry, const std::string& name) {
    report_ = {name, entry.path, SampleFormat::kAuto, "", 0, {}, {}, {}};
    lengths_.clear();
    const SampleStore::Counts before = built_.store.counts();
    DatasetReader reader(entry, token_counter());
    while (read_batch(reader)) {
      encode_batch(entry.mapping);
      for (size_t i = 0; i < rows_read_.size(); ++i) add(encoded_[i], rows_read_[i].where());
      report_.counts = difference(built_.store.counts(), before);
      if (progress_) {
        progress_({report_.name, report_.rows, report_.counts.tokens, reader.bytes_read(), reader.bytes_total()});
      }
    }
    reader.finish();
    report_.format = reader.format();
    report_.decision = reader.decision();
    report_.lengths = summarise_lengths(lengths_);
    check_dataset(report_, options_.chat.train_on != TrainOn::kAll);
    built_.reports.push_back(std::move(report_));
  }

  std::vector<std::string> warnings() const {
    std::vector<std::string> texts;
    for (const Notice& notice : notices_) {
      texts.push_back(fmt::format("{} ({} rows, first: {})", notice.text, notice.rows, notice.first_where));
    }
    return texts;
  }

 private:
  TokenCounter token_counter() const {
    if (!tokenizer_) return {};
    return [this](std::string_view text) { return std::ssize(tokenizer_->encode(text, false)); };
  }

  static SampleStore::Counts difference(const SampleStore::Counts& a, const SampleStore::Counts& b) {
    return {a.offered - b.offered,
            a.kept - b.kept,
            a.truncated - b.truncated,
            a.split - b.split,
            a.too_long - b.too_long,
            a.unsupervised - b.unsupervised,
            a.tokens - b.tokens,
            a.supervised - b.supervised,
            a.dropped_tokens - b.dropped_tokens};
  }

  /// An error behind rows that were read waits for them: of several bad rows the first is named.
  bool read_batch(DatasetReader& reader) {
    if (reading_error_) std::rethrow_exception(std::exchange(reading_error_, nullptr));
    rows_read_.clear();
    size_t bytes = 0;
    try {
      for (DatasetRow row; rows_read_.size() < kBatchRows && bytes < kBatchBytes && reader.next(row);) {
        bytes += row.raw.text.size();
        rows_read_.push_back(std::move(row));
      }
    } catch (...) {
      if (rows_read_.empty()) throw;
      reading_error_ = std::current_exception();
    }
    return !rows_read_.empty();
  }

  void encode_batch(const ColumnMapping& mapping) {
    encoded_.assign(rows_read_.size(), {});
    std::vector<std::exception_ptr> errors(rows_read_.size());
    pool_.parallel_for(static_cast<int64_t>(rows_read_.size()), [&](int64_t index, int) {
      const auto i = static_cast<size_t>(index);
      try {
        encoded_[i] = encoder_.encode(read_row(rows_read_[i], mapping), rows_read_[i].where());
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  void add(EncodedRow& row, const std::string& where) {
    ++report_.rows;
    const SampleStore::Counts before = built_.store.counts();
    add_sample(row.sample, where);
    for (Sample& sample : row.expanded) add_sample(sample, where);
    const SampleStore::Counts& after = built_.store.counts();
    built_.row_of_sample.resize(static_cast<size_t>(built_.store.size()), rows_);
    ++rows_;
    if (!row.nothing_learnt.empty()) {
      count_nothing_learnt(row.nothing_learnt, row.masked_by_data, where);
    } else if (after.kept == before.kept && after.too_long == before.too_long) {
      count_nothing_learnt("what is learnt of them was cut off (max_length and overlength)", false, where);
    }
    if (!row.turn_end_problem.empty()) note(row.turn_end_problem, where);
    if (row.doubled_bos) note("the text begins with two bos tokens", where);
    if (row.partly_shown) note("the template leaves out a part of an assistant's message, which is not learnt", where);
    if (row.history_rewritten) note(rewritten_text(options_.chat.history_rewrites), where);
    if (row.other_roles_ask) {
      note("messages of another role than assistant ask to be learnt; train_on: assistant and last do not", where);
    }
  }

  void add_sample(Sample& sample, const std::string& where) {
    lengths_.push_back(static_cast<int32_t>(sample.input_ids.size()));
    sample.dataset = static_cast<int32_t>(built_.reports.size());
    built_.store.add(sample, where);
  }

  void count_nothing_learnt(const std::string& cause, bool masked_by_data, const std::string& where) {
    for (NothingLearnt& entry : report_.nothing_learnt) {
      if (entry.cause != cause) continue;
      ++entry.rows;
      return;
    }
    report_.nothing_learnt.push_back({cause, 1, where, masked_by_data});
  }

  void note(const std::string& text, const std::string& where) {
    for (Notice& notice : notices_) {
      if (notice.text != text) continue;
      ++notice.rows;
      return;
    }
    notices_.push_back({text, 1, where});
  }

  BuiltStore& built_;
  const SampleEncoder& encoder_;
  const Tokenizer* tokenizer_;  // null: all data is tokenized
  const DataOptions& options_;
  ThreadPool& pool_;
  const DataProgressCallback& progress_;
  DatasetReport report_;
  std::vector<int32_t> lengths_;
  std::vector<DatasetRow> rows_read_;
  std::exception_ptr reading_error_;
  std::vector<EncodedRow> encoded_;
  std::vector<Notice> notices_;
  int64_t rows_ = 0;  // of all data sets
};

/// The samples of the rows that are held back.
std::vector<int64_t> draw_validation(const BuiltStore& built, const DataOptions& options) {
  std::vector<int64_t> rows = built.row_of_sample;
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  const auto count = static_cast<int64_t>(rows.size());
  const double wanted =
      options.val_split < 1 ? std::max(1.0, options.val_split * static_cast<double>(count) + 0.5) : options.val_split;
  if (wanted >= static_cast<double>(count)) {
    throw UserError(fmt::format("val_split {} leaves none of the {} samples to train on", options.val_split, count),
                    "val_split", "hold back fewer, or give more data");
  }
  PhiloxSequence random(mix_key(options.data_seed, kValidationDraw));
  const auto held_back = static_cast<size_t>(wanted);
  for (size_t i = 0; i < held_back; ++i) {
    std::swap(rows[i], rows[i + random.below(rows.size() - i)]);
  }
  rows.resize(held_back);
  std::sort(rows.begin(), rows.end());
  std::vector<int64_t> samples;
  for (size_t i = 0; i < built.row_of_sample.size(); ++i) {
    if (std::binary_search(rows.begin(), rows.end(), built.row_of_sample[i])) {
      samples.push_back(static_cast<int64_t>(i));
    }
  }
  return samples;
}

}  // namespace

BuiltStore build_store(const std::vector<DatasetEntry>& entries, const DataOptions& options, const Tokenizer* tokenizer,
                       ThreadPool& pool, const DataProgressCallback& progress) {
  BuiltStore built{SampleStore(options.max_length, options.overlength), names_of(entries), {}, {}, {}};
  const SampleEncoder encoder(tokenizer, options.chat, options.vocab_size);
  DatasetBuilder builder(built, encoder, tokenizer, options, pool, progress);
  for (size_t i = 0; i < entries.size(); ++i) builder.read(entries[i], built.names[i]);
  built.warnings = builder.warnings();
  return built;
}

TrainingData build_training_data(const DataOptions& options, const Tokenizer* tokenizer, ThreadPool& pool,
                                 const DataProgressCallback& progress) {
  if (options.datasets.empty()) {
    throw UserError("there is no data set to train on", "datasets", "state datasets: [{path: data/chat.jsonl}]");
  }
  HONE_ASSERT(options.val_split == 0 || options.eval_datasets.empty());
  BuiltStore train = build_store(options.datasets, options, tokenizer, pool, progress);
  TrainingData data{std::move(train.store),
                    SampleStore(options.max_length, options.overlength),
                    train.names,
                    {},
                    std::move(train.reports),
                    {},
                    std::move(train.warnings)};
  if (options.val_split > 0) {
    data.eval = data.train.extract(draw_validation(train, options));
    data.eval_names = data.train_names;
  } else if (!options.eval_datasets.empty()) {
    BuiltStore eval = build_store(options.eval_datasets, options, tokenizer, pool, progress);
    data.eval = std::move(eval.store);
    data.eval_names = std::move(eval.names);
    data.eval_reports = std::move(eval.reports);
    data.warnings.insert(data.warnings.end(), eval.warnings.begin(), eval.warnings.end());
  }
  return data;
}

std::vector<PreviewToken> preview_sample(const SampleStore& store, int64_t index, const Tokenizer* tokenizer) {
  const SampleView sample = store[index];
  std::vector<PreviewToken> tokens;
  std::optional<StreamDecoder> decoder;
  if (tokenizer) decoder.emplace(*tokenizer, false);
  for (size_t i = 0; i < sample.input_ids.size(); ++i) {
    const bool supervised = i > 0 && sample.labels[i] != kIgnoredLabel;
    tokens.push_back(
        {decoder ? decoder->push(sample.input_ids[i]) : fmt::format("{} ", sample.input_ids[i]), supervised});
  }
  if (decoder && !tokens.empty()) tokens.back().text += decoder->finish();
  return tokens;
}

}  // namespace hone
