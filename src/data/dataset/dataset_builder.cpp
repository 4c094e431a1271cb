#include "data/dataset/dataset_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/base/printable.h"
#include "data/formats/sample_encoder.h"
#include "data/readers/hub_dataset.h"
#include "text/tokenizer.h"

namespace hone {

namespace {

constexpr uint64_t kValidationDraw = 0x76616c;  // the use of data_seed

/// The name of each entry: the configured one, or one from the path, with a number if the name is taken.
std::vector<std::string> names_of(const std::vector<DatasetEntry>& entries) {
  std::vector<std::string> names;
  // The configured name of a data set of the hub is that of a part of it.
  const auto own_name = [](const DatasetEntry& entry) { return is_hub_dataset(entry.path) ? "" : entry.name; };
  for (const DatasetEntry& entry : entries) names.push_back(own_name(entry));
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) {
      if (std::count(names.begin(), names.end(), names[i]) == 1) continue;
      throw UserError(fmt::format("two data sets have the name '{}'", names[i]), entries[i].path,
                      "give each data set a unique name");
    }
    const std::string base = name_from_path(entries[i].path) + (entries[i].name.empty() ? "" : "-" + entries[i].name);
    std::string name = base;
    for (int number = 2; std::count(names.begin(), names.end(), name) > 0; ++number) {
      name = fmt::format("{}_{}", base, number);
    }
    names[i] = name;
  }
  return names;
}

/// Draws the validation rows; returns the positions of their samples.
std::vector<int64_t> draw_validation(const SampleStore& store, const DataOptions& options) {
  // Rows by the position of their first sample, and the row of each sample.
  std::vector<int64_t> rows, row_of_sample;
  for (int64_t i = 0; i < store.size(); ++i) {
    const auto row_at = [&](int64_t at) { return std::pair(store[at].dataset, store[at].origin.row); };
    if (i == 0 || row_at(i) != row_at(i - 1)) rows.push_back(static_cast<int64_t>(rows.size()));
    row_of_sample.push_back(rows.back());
  }
  const auto count = static_cast<int64_t>(rows.size());
  const double wanted =
      options.val_split < 1 ? std::max(1.0, options.val_split * static_cast<double>(count) + 0.5) : options.val_split;
  if (wanted >= static_cast<double>(count)) {
    throw UserError(fmt::format("val_split {} leaves none of the {} samples to train on", options.val_split, count),
                    "val_split", "use a smaller val_split, or add data");
  }
  PhiloxSequence random(mix_key(options.data_seed, kValidationDraw));
  std::vector<bool> held_back(rows.size());
  for (size_t i = 0; i < static_cast<size_t>(wanted); ++i) {
    std::swap(rows[i], rows[i + random.below(rows.size() - i)]);
    held_back[static_cast<size_t>(rows[i])] = true;
  }
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < store.size(); ++i) {
    if (held_back[static_cast<size_t>(row_of_sample[static_cast<size_t>(i)])]) positions.push_back(i);
  }
  return positions;
}

/// The texts of notices about rows, with counts.
std::vector<std::string> texts_of(const std::vector<RowNotice>& notices) {
  std::vector<std::string> texts;
  for (const RowNotice& notice : notices) {
    texts.push_back(
        fmt::format("{} ({} row{}, first: {})", notice.text, notice.rows, plural(notice.rows), notice.first_where));
  }
  return texts;
}

}  // namespace

BuiltStore build_store(const std::vector<DatasetEntry>& entries, const DataOptions& options, const Tokenizer* tokenizer,
                       ThreadPool& pool, const DataProgressCallback& progress) {
  BuiltStore built{SampleStore(options.max_length), names_of(entries), {}, {}, {}};
  const SampleEncoder encoder(tokenizer, options.chat, options.vocab_size);
  std::optional<ContentHashes> hashes;
  if (!options.tokenized_cache.empty()) hashes.emplace(options.tokenized_cache + "/content_hashes.json", pool);
  TokenCounter count_tokens;
  if (tokenizer) {
    count_tokens = [&encoder](std::string_view text) { return encoder.count_tokens(text); };
  }
  const EncodingContext context{options, encoder, pool, progress, count_tokens, hashes ? &*hashes : nullptr};
  RowsReport all;
  for (size_t i = 0; i < entries.size(); ++i) {
    EncodedDataset dataset = encode_dataset(entries[i], built.names[i], context);
    const std::string tolerated =
        check_dataset(dataset.report, options.chat.train_on != TrainOn::kAll, options.tolerant);
    if (!tolerated.empty()) built.warnings.push_back(tolerated);
    for (const TokenBlock& block : dataset.blocks) built.store.append(block, static_cast<int32_t>(i));
    all += dataset.report;
    if (!dataset.cache_line.empty()) built.cache_lines.push_back(dataset.cache_line);
    built.reports.push_back(std::move(dataset.report));
  }
  const std::vector<std::string> notices = texts_of(all.notices);
  built.warnings.insert(built.warnings.end(), notices.begin(), notices.end());
  return built;
}

TrainingData build_training_data(const DataOptions& options, const Tokenizer* tokenizer, ThreadPool& pool,
                                 const DataProgressCallback& progress) {
  if (options.datasets.empty()) {
    throw UserError("there is no data set to train on", "datasets", "set datasets: [{path: data/chat.jsonl}]");
  }
  HONE_ASSERT(options.val_split == 0 || options.eval_datasets.empty());
  BuiltStore train = build_store(options.datasets, options, tokenizer, pool, progress);
  TrainingData data;
  data.train = std::move(train.store);
  data.train_names = std::move(train.names);
  data.train_reports = std::move(train.reports);
  data.warnings = std::move(train.warnings);
  data.cache_lines = std::move(train.cache_lines);
  if (options.val_split > 0) {
    data.eval = data.train.extract(draw_validation(data.train, options));
    data.eval_names = data.train_names;
  } else if (!options.eval_datasets.empty()) {
    BuiltStore eval = build_store(options.eval_datasets, options, tokenizer, pool, progress);
    data.eval = std::move(eval.store);
    data.eval_names = std::move(eval.names);
    data.eval_reports = std::move(eval.reports);
    data.warnings.insert(data.warnings.end(), eval.warnings.begin(), eval.warnings.end());
    data.cache_lines.insert(data.cache_lines.end(), eval.cache_lines.begin(), eval.cache_lines.end());
  }
  return data;
}

std::vector<MaskPiece> preview_sample(const SampleStore& store, int64_t index, const Tokenizer* tokenizer,
                                      size_t max_span) {
  constexpr size_t kContext = 8;  // tokens that are decoded before those shown: no character has more
  const SampleView sample = store[index];
  const size_t count = sample.input_ids.size();
  const auto supervised = [&](size_t i) { return i > 0 && sample.labels[i] != kIgnoredLabel; };
  std::optional<StreamDecoder> decoder;
  std::vector<MaskPiece> pieces;
  const auto show = [&](size_t begin, size_t end) {
    MaskPiece piece{"", supervised(begin), static_cast<int64_t>(end - begin)};
    for (size_t i = begin; i < end; ++i) {
      piece.text += tokenizer ? decoder->push(sample.input_ids[i]) : fmt::format("{} ", sample.input_ids[i]);
    }
    pieces.push_back(std::move(piece));
  };
  if (tokenizer) decoder.emplace(*tokenizer, false);
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && supervised(end) == supervised(begin)) ++end;
    if (max_span == 0 || end - begin <= max_span) {
      show(begin, end);
      continue;
    }
    const size_t last = end - max_span / 2, hidden = end - begin - max_span, first = last - hidden;
    show(begin, first);
    pieces.push_back({"", supervised(begin), static_cast<int64_t>(hidden), false});
    if (tokenizer) {
      decoder.emplace(*tokenizer, false);
      for (size_t i = last - std::min(hidden, kContext); i < last; ++i) decoder->push(sample.input_ids[i]);
    }
    show(last, end);
  }
  if (decoder && !pieces.empty()) pieces.back().text += decoder->finish();
  return pieces;
}

}  // namespace hone
