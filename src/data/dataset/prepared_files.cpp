#include "data/dataset/prepared_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "data/dataset/row_batches.h"
#include "data/packing/mixture.h"
#include "data/readers/csv_reader.h"

namespace hone {
namespace {

constexpr std::array<std::string_view, 3> kCsvColumns = {"prompt", "question", "response"};

std::vector<Json> read_rows(const std::vector<DatasetEntry>& entries) {
  std::vector<Json> rows;
  for (const DatasetEntry& entry : entries) {
    RowBatches batches(entry);
    RowBatch batch;
    for (batch = batches.next(); !batch.rows.empty(); batch = batches.next()) {
      for (const DatasetRow& row : batch.rows) rows.push_back(parse_row(row.raw));
      if (batch.error) break;
    }
    if (batch.error) std::rethrow_exception(batch.error);
  }
  return rows;
}

/// The names of all columns, in the order of their first use.
std::vector<std::string> columns_of(const std::vector<Json>& rows) {
  std::vector<std::string> columns;
  for (const Json& row : rows) {
    for (const auto& [name, value] : row.items()) {
      if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
    }
  }
  return columns;
}

/// Whether CSV can store the rows without loss: every field is text, and every row has the three columns.
bool fits_csv(const std::vector<Json>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const Json& row) {
    const bool text = std::all_of(row.begin(), row.end(), [](const Json& value) { return value.is_string(); });
    return text && std::all_of(kCsvColumns.begin(), kCsvColumns.end(),
                               [&](std::string_view name) { return row.contains(name); });
  });
}

std::string csv_text(std::span<const Json> rows, const std::vector<std::string>& columns) {
  std::string text = csv_record(columns);
  for (const Json& row : rows) {
    std::vector<std::string> fields;
    for (const std::string& column : columns) fields.push_back(row.value(column, ""));
    text += csv_record(fields);
  }
  return text;
}

std::string jsonl_text(std::span<const Json> rows) {
  std::string text;
  for (const Json& row : rows) text += row.dump() + "\n";
  return text;
}

constexpr const char* kStatistics = "dataset_stats.json";
constexpr std::string_view kShard = "training_data_node_";

std::string shard_name(int64_t node, bool csv) { return fmt::format("{}{}.{}", kShard, node, csv ? "csv" : "jsonl"); }

/// What is read is never written over. A repository of source code may hold the output: JSONL is not source code.
OutputRule with_inputs(OutputRule rule, const std::vector<DatasetEntry>& entries) {
  std::error_code error;
  for (const DatasetEntry& entry : entries) {
    if (!entry.code || !std::filesystem::is_directory(entry.path, error)) rule.inputs.add(entry.path, "the data set");
  }
  return rule;
}

/// Throws UserError if the folder contains shards that may not be replaced, or those of a run with more nodes, which
/// would mix with these.
void check_output(const NodeShardOptions& options, const OutputRule& rule) {
  rule.inputs.refuse_inside(options.output);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options.output, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kShard)) continue;
    if (std::atoll(name.c_str() + kShard.size()) >= options.nodes) {
      throw UserError("the folder holds shards of a run with more nodes", entry.path().string(),
                      "remove them, or choose another --output");
    }
    require_output(entry.path(), rule);
  }
  require_output(options.output / kStatistics, rule);
}

}  // namespace

NodeShards write_node_shards(const std::vector<DatasetEntry>& entries, const NodeShardOptions& options) {
  const OutputRule rule = with_inputs(options.rule, entries);
  check_output(options, rule);
  std::vector<Json> rows = read_rows(entries);
  NodeShards shards;
  shards.total_samples = static_cast<int64_t>(rows.size());
  if (shards.total_samples < options.nodes) {
    throw UserError(fmt::format("{} rows cannot be split over {} nodes", rows.size(), options.nodes), "--split-nodes",
                    "use fewer nodes");
  }
  shards.samples_per_node = shards.total_samples / options.nodes;
  shards.columns = columns_of(rows);
  const bool csv = fits_csv(rows);
  PhiloxSequence random(options.seed);
  shuffle_with(random, rows);
  // Shards of an earlier run on other data, which would be read beside these.
  for (int64_t node = 0; node < options.nodes; ++node) remove_output(options.output / shard_name(node, !csv), rule);
  write_output_set(options.output, rule, [&](const std::filesystem::path& folder) {
    for (int64_t node = 0; node < options.nodes; ++node) {
      const auto begin = static_cast<size_t>(node * shards.samples_per_node);
      const auto part = std::span<const Json>(rows).subspan(
          begin, node + 1 == options.nodes ? std::dynamic_extent : static_cast<size_t>(shards.samples_per_node));
      write_durably(folder / shard_name(node, csv), csv ? csv_text(part, shards.columns) : jsonl_text(part));
    }
    write_durably(folder / kStatistics, Json{{"total_samples", shards.total_samples},
                                             {"num_nodes", options.nodes},
                                             {"samples_per_node", shards.samples_per_node},
                                             {"columns", shards.columns}}
                                                .dump(2) +
                                            "\n");
  });
  for (int64_t node = 0; node < options.nodes; ++node) shards.files.push_back(options.output / shard_name(node, csv));
  shards.statistics = options.output / kStatistics;
  return shards;
}

CodeFile write_code_file(const std::vector<DatasetEntry>& entries, const TokenCounter& count,
                         const std::filesystem::path& output, OutputRule rule) {
  rule = with_inputs(std::move(rule), entries);
  CodeFile result{output / "all_data.jsonl", 0, {}};
  require_output(result.path, rule);
  write_output_set(output, rule, [&](const std::filesystem::path& folder) {
    NewFile file(folder / result.path.filename());
    for (const DatasetEntry& entry : entries) {
      HONE_ASSERT(entry.code.has_value());
      CodeReader reader(entry.path, *entry.code, count);
      for (CodeReader::Sample sample; reader.next(sample); ++result.samples) {
        const Json row = {
            {"text", sample.text}, {"type", name_of(sample.kind)}, {"file", sample.file}, {"line", sample.line}};
        file.write(row.dump() + "\n");
      }
      result.statistics.push_back(fmt::format("{}: {}", entry.path, reader.statistics().to_text("; ")));
    }
    file.finish();
  });
  return result;
}

}  // namespace hone
