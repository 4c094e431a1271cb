#include "data/prepared_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "core/durable_file.h"
#include "core/error.h"
#include "core/json.h"
#include "core/philox.h"
#include "data/csv_reader.h"
#include "data/mixture.h"
#include "data/row_batches.h"

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

/// Creates the folder. Throws UserError if it contains shards of a run with more nodes, which would mix with these.
void check_output(const std::filesystem::path& output, int64_t nodes) {
  std::error_code error;
  std::filesystem::create_directories(output, error);
  if (error) throw UserError("cannot create the folder: " + error.message(), output.string());
  for (const auto& entry : std::filesystem::directory_iterator(output, error)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kStart = "training_data_node_";
    if (!name.starts_with(kStart)) continue;
    const int64_t node = std::atoll(name.c_str() + kStart.size());
    if (node >= nodes) {
      throw UserError("the folder holds shards of a run with more nodes", entry.path().string(),
                      "remove them, or choose another --output");
    }
  }
}

}  // namespace

NodeShards write_node_shards(const std::vector<DatasetEntry>& entries, const NodeShardOptions& options) {
  std::vector<Json> rows = read_rows(entries);
  NodeShards shards;
  shards.total_samples = static_cast<int64_t>(rows.size());
  if (shards.total_samples < options.nodes) {
    throw UserError(fmt::format("{} rows cannot be split over {} nodes", rows.size(), options.nodes), "--split-nodes",
                    "use fewer nodes");
  }
  check_output(options.output, options.nodes);
  shards.samples_per_node = shards.total_samples / options.nodes;
  shards.columns = columns_of(rows);
  const bool csv = fits_csv(rows);
  PhiloxSequence random(options.seed);
  shuffle_with(random, rows);
  for (int64_t node = 0; node < options.nodes; ++node) {
    const auto begin = static_cast<size_t>(node * shards.samples_per_node);
    const auto part = std::span<const Json>(rows).subspan(
        begin, node + 1 == options.nodes ? std::dynamic_extent : static_cast<size_t>(shards.samples_per_node));
    const auto name = [&](bool as_csv) {
      return options.output / fmt::format("training_data_node_{}.{}", node, as_csv ? "csv" : "jsonl");
    };
    write_durably(name(csv), csv ? csv_text(part, shards.columns) : jsonl_text(part));
    std::error_code error;
    std::filesystem::remove(name(!csv), error);  // of an earlier run on other data
    shards.files.push_back(name(csv));
  }
  shards.statistics = options.output / "dataset_stats.json";
  write_durably(shards.statistics, Json{{"total_samples", shards.total_samples},
                                        {"num_nodes", options.nodes},
                                        {"samples_per_node", shards.samples_per_node},
                                        {"columns", shards.columns}}
                                           .dump(2) +
                                       "\n");
  return shards;
}

CodeFile write_code_file(const std::vector<DatasetEntry>& entries, const TokenCounter& count,
                         const std::filesystem::path& output) {
  std::error_code error;
  std::filesystem::create_directories(output, error);
  if (error) throw UserError("cannot create the folder: " + error.message(), output.string());
  CodeFile result{output / "all_data.jsonl", 0, {}};
  const std::filesystem::path temporary = output / "all_data.jsonl.tmp";
  std::ofstream file(temporary, std::ios::binary);
  for (const DatasetEntry& entry : entries) {
    HONE_ASSERT(entry.code.has_value());
    CodeReader reader(entry.path, *entry.code, count);
    for (CodeReader::Sample sample; file && reader.next(sample); ++result.samples) {
      const Json row = {
          {"text", sample.text}, {"type", name_of(sample.kind)}, {"file", sample.file}, {"line", sample.line}};
      file << row.dump() << '\n';
    }
    result.statistics.push_back(fmt::format("{}: {}", entry.path, reader.statistics().to_text("; ")));
  }
  file.close();
  if (file) std::filesystem::rename(temporary, result.path, error);
  if (!file || error) {
    std::filesystem::remove(temporary, error);
    throw UserError("the file cannot be written", result.path.string(), "check its folder, permissions and free space");
  }
  return result;
}

}  // namespace hone
