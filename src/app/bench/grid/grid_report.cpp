#include "app/bench/grid/grid_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/printable.h"
#include "core/text/json.h"
#include "report/humanise.h"
#include "report/table.h"

namespace hone {
namespace {

/// A number or a text of a row at a path such as "/result/step_ms/median".
struct Field {
  const char* name;  ///< its column in CSV
  const char* path;
};

const Json* at(const Json& row, const char* path) {
  const Json::json_pointer pointer(path);
  if (!row.contains(pointer)) return nullptr;
  const Json& value = row.at(pointer);
  return value.is_null() || value.is_structured() ? nullptr : &value;
}

std::optional<double> number_at(const Json& row, const char* path) {
  const Json* value = at(row, path);
  return value && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
}

std::string text_at(const Json& row, const char* path) {
  const Json* value = at(row, path);
  if (!value) return "";
  return value->is_string() ? value->get<std::string>() : value->dump();
}

constexpr const char* kTokensPerSecond = "/result/tokens_per_second";
constexpr const char* kStepMs = "/result/step_ms/median";
constexpr const char* kTflops = "/result/model_tflops";
constexpr const char* kShare = "/result/share_of_one_rank";
constexpr const char* kPlan = "/result/memory/plan";
constexpr const char* kUsed = "/result/memory/used";
constexpr const char* kUsedBefore = "/result/memory/used_before";
constexpr const char* kHostPlan = "/result/memory/host";
constexpr const char* kHostPeak = "/host_peak_bytes";

std::vector<Field> csv_fields(const GridMemory& memory) {
  std::vector<Field> fields = {{"tokens_per_second", kTokensPerSecond},
                               {"step_ms", kStepMs},
                               {"step_ms_min", "/result/step_ms/min"},
                               {"step_ms_max", "/result/step_ms/max"},
                               {"model_tflops", kTflops},
                               {"share_of_one_rank", kShare},
                               {"recomputed", "/result/recompute"},
                               {"parameters", "/result/parameters"},
                               {"trained", "/result/trained"}};
  if (memory.plan) fields.push_back({"plan_bytes", kPlan});
  if (memory.device) fields.insert(fields.end(), {{"device_bytes", kUsed}, {"device_bytes_before", kUsedBefore}});
  if (memory.host) fields.insert(fields.end(), {{"host_plan_bytes", kHostPlan}, {"host_peak_bytes", kHostPeak}});
  fields.insert(fields.end(), {{"wall_s", "/wall_s"},
                               {"device_name", "/result/device_name"},
                               {"version", "/version"},
                               {"date", "/date"},
                               {"message", "/message"},
                               {"command", "/command"}});
  return fields;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_line(const std::vector<std::string>& texts) {
  std::vector<std::string> fields;
  for (const std::string& text : texts) fields.push_back(csv_field(text));
  return fmt::format("{}\n", fmt::join(fields, ","));
}

std::string setting(const GridScenario& scenario, const std::string& name) {
  const std::string* value = scenario.settings.find(name);
  return value ? *value : "";
}

/// Names of the settings in which scenarios differ; model where none does.
std::vector<std::string> differing(const GridFile& grid) {
  std::vector<std::string> names;
  for (const std::string& name : grid.names) {
    std::set<std::string> values;
    for (const GridScenario& scenario : grid.scenarios) values.insert(setting(scenario, name));
    if (values.size() > 1) names.push_back(name);
  }
  return names.empty() ? std::vector<std::string>{"model"} : names;
}

std::string bytes_cell(const Json& row, const char* path) {
  const std::optional<double> bytes = number_at(row, path);
  return bytes ? human_bytes(*bytes) : "";
}

std::string percent_cell(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", *share * 100) : "";
}

using Cell = std::function<std::string(const Json& row)>;

/// A column of results.
struct ResultColumn {
  std::string name;
  Cell cell;
  int drop = 0;
};

std::string tokens_cell(const Json& row) {
  const std::optional<double> tokens = number_at(row, kTokensPerSecond);
  return tokens ? with_commas(static_cast<int64_t>(*tokens)) : name_of(status_of(row));
}

Cell number_cell(const char* path, const char* format) {
  return [=](const Json& row) {
    const std::optional<double> number = number_at(row, path);
    return number ? fmt::format(fmt::runtime(format), *number) : "";
  };
}

Cell memory_cell(const char* path) {
  return [=](const Json& row) { return bytes_cell(row, path); };
}

std::vector<ResultColumn> result_columns(const GridMemory& memory, bool ranks, const GridRows* before) {
  std::vector<ResultColumn> columns = {{ranks ? "tokens/s a rank" : "tokens/s", tokens_cell},
                                       {"step ms", number_cell(kStepMs, "{:.1f}")},
                                       {"TFLOP/s", number_cell(kTflops, "{:.4g}"), 1}};
  if (memory.plan) columns.push_back({"plan", memory_cell(kPlan)});
  if (memory.device) columns.push_back({"device", memory_cell(kUsed)});
  if (memory.host) {
    columns.push_back({"host plan", memory_cell(kHostPlan), 2});
    columns.push_back({"host peak", memory_cell(kHostPeak)});
  }
  if (ranks) {
    columns.push_back({"of one rank", [](const Json& row) { return percent_cell(number_at(row, kShare)); }});
  }
  if (before) {
    columns.push_back({"of before", [=](const Json& row) {
                         return percent_cell(share_of(row, before->find(text_at(row, "/command"))));
                       }});
  }
  return columns;
}

/// Why scenarios were not measured, each reason once, with the numbers of its scenarios.
class Reasons {
 public:
  void add(size_t number, const Json& row) {
    std::string reason = row_line(row);
    if (const std::string fix = text_at(row, "/fix"); !fix.empty()) {
      if (reason.ends_with('.')) reason.pop_back();
      reason += "; " + one_line(fix);
    }
    const auto same =
        std::find_if(list_.begin(), list_.end(), [&](const auto& known) { return known.first == reason; });
    if (same == list_.end()) {
      list_.emplace_back(std::move(reason), std::vector<size_t>{number});
    } else {
      same->second.push_back(number);
    }
  }
  /// "  1, 2: refused: …" lines after an empty one; "" if there are none.
  std::string text() const {
    std::string text;
    for (const auto& [reason, numbers] : list_) text += fmt::format("  {}: {}\n", fmt::join(numbers, ", "), reason);
    return text.empty() ? "" : "\n" + text;
  }

 private:
  std::vector<std::pair<std::string, std::vector<size_t>>> list_;
};

}  // namespace

std::string grid_csv(const GridFile& grid, const GridRows& rows) {
  const std::vector<Field> fields = csv_fields(grid.memory);
  std::vector<std::string> header = {"status"};
  header.insert(header.end(), grid.names.begin(), grid.names.end());
  for (const Field& field : fields) header.push_back(field.name);
  std::string csv = csv_line(header);
  for (const GridScenario& scenario : grid.scenarios) {
    const Json* row = rows.find(scenario.command_line());
    if (!row) continue;
    std::vector<std::string> line = {name_of(status_of(*row))};
    for (const std::string& name : grid.names) line.push_back(setting(scenario, name));
    for (const Field& field : fields) line.push_back(text_at(*row, field.path));
    csv += csv_line(line);
  }
  return csv;
}

std::string grid_table(const GridFile& grid, const GridRows& rows, const GridRows* before, bool color, int width) {
  const std::vector<std::string> names = differing(grid);
  const bool ranks = std::any_of(grid.scenarios.begin(), grid.scenarios.end(), [](const GridScenario& scenario) {
    return !setting(scenario, kRanksKey).empty() && setting(scenario, kRanksKey) != "1";
  });
  const std::vector<ResultColumn> results = result_columns(grid.memory, ranks, before);
  std::vector<Table::Column> columns = {{"#", Align::kRight}};
  for (const std::string& name : names) columns.push_back({name});
  for (const ResultColumn& column : results) columns.push_back({column.name, Align::kRight, column.drop});
  Table table(std::move(columns));
  Reasons reasons;
  for (size_t i = 0; i < grid.scenarios.size(); ++i) {
    const GridScenario& scenario = grid.scenarios[i];
    std::vector<std::string> cells = {std::to_string(i + 1)};
    for (const std::string& name : names) cells.push_back(one_line(setting(scenario, name)));
    const Json* row = rows.find(scenario.command_line());
    if (!row) {
      cells.push_back("not run");
    } else {
      for (const ResultColumn& column : results) cells.push_back(column.cell(*row));
      if (status_of(*row) != GridStatus::kMeasured) reasons.add(i + 1, *row);
    }
    table.add_row(std::move(cells));
  }
  return table.to_string(color, 2, width) + reasons.text();
}

std::string grid_summary(const GridFile& grid, const GridRows& rows) {
  std::map<GridStatus, int> counts;
  int missing = 0;
  for (const GridScenario& scenario : grid.scenarios) {
    const Json* row = rows.find(scenario.command_line());
    if (row) {
      ++counts[status_of(*row)];
    } else {
      ++missing;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [status, count] : counts) {
    const bool several = status == GridStatus::kDoesNotFit && count > 1;
    parts.push_back(fmt::format("{} {}", count, several ? "do not fit" : name_of(status)));
  }
  if (missing > 0) parts.push_back(fmt::format("{} not run", missing));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string row_line(const Json& row) {
  const GridStatus status = status_of(row);
  if (status != GridStatus::kMeasured)
    return fmt::format("{}: {}", name_of(status), one_line(text_at(row, "/message")));
  return fmt::format("{} tokens/s, {} ms, {}", tokens_cell(row), number_cell(kStepMs, "{:.1f}")(row),
                     bytes_cell(row, kUsed));
}

std::optional<double> share_of(const Json& row, const Json* before) {
  const std::optional<double> now = number_at(row, kTokensPerSecond);
  const std::optional<double> then = before ? number_at(*before, kTokensPerSecond) : std::nullopt;
  return now && then && *then > 0 ? std::optional(*now / *then) : std::nullopt;
}

}  // namespace hone
