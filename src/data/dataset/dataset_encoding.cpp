#include "data/dataset/dataset_encoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/program.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "data/dataset/row_batches.h"
#include "data/dataset/token_cache.h"
#include "data/formats/sample_format.h"

namespace hone {

namespace {

/// All inputs that the tokens of `entry` depend on: the key of its cache.
Json inputs_of(const DatasetEntry& entry, const DataOptions& options, ContentHashes& hashes) {
  Json data = Json::object(), tokenizer = Json::object();
  for (const std::string& file : data_files(entry)) data[file] = hashes.of(file);
  for (const std::string& file : options.tokenizer_files) tokenizer[file] = hashes.of(file);
  const ChatEncoderOptions& chat = options.chat;
  return {{"path", entry.path},
          {"program", version()},
          {"encoding_version", kEncodingVersion},
          {"data_files", data},
          {"type", name_of(entry.format)},
          {"samples", entry.samples ? Json(*entry.samples) : Json()},
          {"split", entry.split},
          {"column_mapping", entry.mapping.to_json()},
          {"delimiter", entry.delimiter ? std::string(1, *entry.delimiter) : ""},
          {"prompt_template", entry.prompt_template ? entry.prompt_template->to_json() : Json()},
          {"drop_system_message", entry.drop_system_message},
          {"add_bos_token", chat.add_bos ? Json(*chat.add_bos) : Json()},
          {"add_eos_token", chat.add_eos},
          {"token_choice", options.token_choice},
          {"tokenizer_files", tokenizer},
          {"chat_template_hash", chat.chat_template.empty() ? "" : hash_text(xxh64(chat.chat_template))},
          {"chat_template_kwargs", chat.chat_template_kwargs},
          {"learn_empty_thinking", chat.learn_empty_thinking},
          {"split_special_tokens", chat.split_special_tokens},
          {"train_on", name_of(chat.train_on)},
          {"history_rewrites", static_cast<int>(chat.history_rewrites)},
          {"max_length", options.max_length},
          {"overlength", name_of(options.overlength)},
          {"vocab_size", options.vocab_size},
          {"block_tokens", options.block_tokens}};
}

/// Reads and encodes a data set block by block, starting at a given row.
class DatasetEncoding {
 public:
  using BlockSink = std::function<void(const TokenBlock&)>;

  DatasetEncoding(const DatasetEntry& entry, DatasetReport& report, const EncodingContext& context)
      : entry_(entry),
        report_(report),
        context_(context),
        prompt_(entry.prompt_template ? &*entry.prompt_template : usual_prompt(context)),
        builder_(context.options.max_length, context.options.overlength, context.options.chat.history_rewrites) {}

  void run(int64_t first_row, int64_t tokens, const BlockSink& sink) {
    RowBatches batches(entry_, first_row, context_.count_tokens);
    tokens_ = tokens;
    RowBatch batch;
    for (batch = batches.next(); !batch.rows.empty(); batch = batches.next()) {
      encode(batch);
      for (size_t i = 0; i < batch.rows.size(); ++i) {
        encoded_[i].origin = {batch.first_row + static_cast<int64_t>(i), batch.rows[i].raw.line, batch.files[i]};
        builder_.add(encoded_[i], batch.rows[i].where());
        encoded_[i] = {};  // a document may be as long as a block
        if (builder_.tokens() >= context_.options.block_tokens) sink(take());
      }
      if (context_.progress) {
        const auto rows = batch.first_row + static_cast<int64_t>(batch.rows.size());
        context_.progress(
            {report_.name, rows, tokens_ + builder_.tokens(), batch.bytes_read, batches.bytes_total(), false});
      }
      if (batch.error) break;
    }
    if (batch.error) std::rethrow_exception(batch.error);
    if (first_row == 0) batches.reader().finish();  // skipped rows were not parsed
    report_.format = batches.reader().format();
    report_.decision = batches.reader().decision();
    if (prompt_ && !entry_.prompt_template && report_.format == SampleFormat::kAlpaca) {
      report_.decision += "; written as text (prompt_template: plain), since the model has no chat template";
    }
    report_.files = batches.files();
    if (builder_.rows() > 0) sink(take());
  }

 private:
  /// The prompt template for train_on: completion without a chat template: rows of one turn become plain text.
  static const PromptTemplate* usual_prompt(const EncodingContext& context) {
    const bool completion = context.options.chat.train_on == TrainOn::kCompletion;
    return completion && !context.encoder.has_chat_template() ? &PromptTemplate::plain() : nullptr;
  }

  /// Formats a row, and returns its unused columns in `unused`.
  FormattedRow formatted(const DatasetRow& row, const std::string& where, std::vector<std::string>& unused) const {
    if (prompt_ && row.format == SampleFormat::kAlpaca) {
      const Json parsed = parse_row(row.raw);
      refuse_contrary_columns(parsed, row.format, where, entry_.mapping);
      const RowColumns columns(parsed, name_of(row.format), where, entry_.mapping);
      FormattedRow filled = prompt_->fill(columns);
      unused = columns.unread();
      return filled;
    }
    if (entry_.prompt_template) {
      throw UserError(
          fmt::format("prompt_template needs rows of type alpaca, and these have the type {}", name_of(row.format)),
          where,
          "set type: alpaca (and column_mapping if the columns have other names), or remove "
          "prompt_template");
    }
    return read_row(row, entry_.mapping, &unused);
  }

  /// Fills encoded_, and frees the text of the rows.
  void encode(RowBatch& batch) {
    encoded_.assign(batch.rows.size(), {});
    std::vector<std::exception_ptr> errors(batch.rows.size());
    std::atomic<size_t> first_bad = batch.rows.size();  // rows after it are not needed, and may take long to fail too
    context_.pool.parallel_for(static_cast<int64_t>(batch.rows.size()), [&](int64_t index, int) {
      const auto i = static_cast<size_t>(index);
      if (i > first_bad.load(std::memory_order_relaxed)) return;
      try {
        const std::string where = batch.rows[i].where();
        std::vector<std::string> unused;
        FormattedRow row = formatted(batch.rows[i], where, unused);
        std::string().swap(batch.rows[i].raw.text);
        if (entry_.drop_system_message) drop_system_message(row, where);
        encoded_[i] = context_.encoder.encode(std::move(row), where);
        encoded_[i].unused_columns = std::move(unused);
      } catch (...) {
        errors[i] = std::current_exception();
        for (size_t bad = first_bad; i < bad && !first_bad.compare_exchange_weak(bad, i);) {
        }
      }
    });
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  TokenBlock take() {
    tokens_ += builder_.tokens();
    return builder_.take();
  }

  const DatasetEntry& entry_;
  DatasetReport& report_;
  const EncodingContext& context_;
  const PromptTemplate* prompt_;  // null: rows of alpaca are chats
  BlockBuilder builder_;
  std::vector<EncodedRow> encoded_;
  int64_t tokens_ = 0;  // in the blocks so far
};

/// The format and the reason for it, for the manifest of a cache.
Json about(const DatasetReport& report) {
  return {{"format", name_of(report.format)}, {"decision", report.decision}, {"files", report.files}};
}

std::string line_of_build(const TokenCache& cache, const std::string& name, int64_t kept_rows) {
  const std::string folder = cache.folder().string();
  const std::string problem = cache.problem().empty() ? "" : fmt::format(" ({})", cache.problem());
  if (kept_rows == 0) return fmt::format("tokenized_cache: {}: built{} in {}", name, problem, folder);
  return fmt::format("tokenized_cache: {}: continued after {} rows{} in {}", name, kept_rows,
                     problem.empty() ? " of a build that was stopped," : problem, folder);
}

/// Loads a data set from the cache; encodes the missing part first.
void encode_cached(const DatasetEntry& entry, const EncodingContext& context, EncodedDataset& dataset) {
  DatasetReport& report = dataset.report;
  const Json inputs = inputs_of(entry, context.options, *context.hashes);
  TokenCache cache(context.options.tokenized_cache, report.name, inputs);
  std::optional<TokenCache::Contents> contents = cache.open(context.pool);
  dataset.cache_line = fmt::format("tokenized_cache: {}: reused from {}", report.name, cache.folder().string());
  if (!contents) {
    cache.lock([&] {
      if (context.progress) context.progress({report.name, 0, 0, 0, 0, true});
    });
    contents = cache.open(context.pool);  // another process may have built it in the meantime
  }
  if (!contents) {
    RowsReport done;
    for (const TokenBlock& block : cache.partial()) done += block.report;
    dataset.cache_line = line_of_build(cache, report.name, done.rows);
    DatasetEncoding(entry, report, context).run(done.rows, done.counts.tokens, [&](const TokenBlock& block) {
      cache.add(block);
    });
    if (const Json now = inputs_of(entry, context.options, *context.hashes); now != inputs) {
      throw UserError("the data changed while they were read: " + describe_differences(inputs, now), entry.path,
                      "start again when the files are complete");
    }
    cache.finish(about(report));
    contents = cache.open(context.pool);
    if (!contents) {
      throw UserError("the cache differs from what was written: " + cache.problem(), cache.folder().string(),
                      "check the disk, or remove tokenized_cache");
    }
  }
  report.format = sample_format_of(contents->about.at("format").get<std::string>());
  report.decision = contents->about.at("decision");
  contents->about.at("files").get_to(report.files);
  dataset.blocks = std::move(contents->blocks);
}

}  // namespace

EncodedDataset encode_dataset(const DatasetEntry& entry, const std::string& name, const EncodingContext& context) {
  EncodedDataset dataset;
  DatasetReport& report = dataset.report;
  report.name = name;
  report.path = entry.path;
  report.ignored_columns = entry.mapping.ignored();
  if (context.hashes && !entry.code) {
    encode_cached(entry, context, dataset);
  } else {
    if (context.hashes) dataset.cache_line = fmt::format("tokenized_cache: {}: not used for type code", name);
    DatasetEncoding(entry, report, context).run(0, 0, [&](const TokenBlock& block) {
      dataset.blocks.push_back(block);
    });
  }
  std::vector<int32_t> lengths;
  for (const TokenBlock& block : dataset.blocks) {
    static_cast<RowsReport&>(report) += block.report;
    lengths.insert(lengths.end(), block.lengths.begin(), block.lengths.end());
  }
  report.lengths = summarise_lengths(lengths);
  report.histogram = histogram_of(lengths, report.lengths);
  return dataset;
}

}  // namespace hone
