#include "app/report/report.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <set>

#include "app/output.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "report/humanise.h"
#include "report/page/page.h"
#include "report/page/run_record.h"
#include "report/table.h"
#include "report/terminal.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// The rule for a page: no file of the runs that it shows is written over.
OutputRule page_rule(const std::vector<std::string>& folders, bool force) {
  Inputs inputs;
  for (const std::string& folder : folders) {
    for (const char* name : kRecordFiles) inputs.emplace_back(fs::path(folder) / name, "a file of the run");
  }
  return output_rule(inputs, force, is_page);
}

/// A number of a summary as text, or "–".
template <class Text>
std::string field(const Json& summary, const char* name, const Text& text) {
  const auto found = summary.find(name);
  return found != summary.end() && found->is_number() ? text(found->template get<double>()) : "–";
}

}  // namespace

std::optional<size_t> best_of(const RunRecords& records) {
  std::optional<size_t> best;
  double least = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const Json& summary = records[i].second["summary"];
    if (!summary.contains("eval_loss")) continue;
    const double loss = summary["eval_loss"].get<double>();
    if (best && loss >= least) continue;
    best = i;
    least = loss;
  }
  return best;
}

std::string summary_table(const RunRecords& records, bool color, int width) {
  Table table({{""},
               {"run"},
               {"state", Align::kLeft, 1},
               {"step", Align::kRight},
               {"loss", Align::kRight},
               {"best eval", Align::kRight},
               {"at step", Align::kRight, 2},
               {"tokens/s", Align::kRight},
               {"memory", Align::kRight},
               {"time", Align::kRight, 3}});
  const std::optional<size_t> best = best_of(records);
  for (size_t i = 0; i < records.size(); ++i) {
    const auto& [name, record] = records[i];
    const Json& summary = record["summary"];
    const auto loss = [](double value) { return fixed_number(value, 4); };
    table.add_row({best == i ? "*" : "", one_line(name), one_line(record["state"]["text"].get<std::string>()),
                   with_commas(record["step"].get<int64_t>()), field(summary, "loss", loss),
                   field(summary, "eval_loss", loss),
                   field(summary, "eval_step", [](double value) { return with_commas(static_cast<int64_t>(value)); }),
                   field(summary, "tokens_per_second", human_count),
                   field(summary, "memory", [](double value) { return human_bytes(value); }),
                   field(summary, "seconds", human_duration)});
  }
  return table.to_string(color, 2, width);
}

int run_report(const ReportPageOptions& options) {
  const fs::path output = options.output.empty() ? fs::path(options.folder) / kPageName : fs::path(options.output);
  const OutputRule rule = page_rule({options.folder}, options.force);
  require_output(output, rule);
  write_output(output, run_page(options.folder), rule);
  print_text(fmt::format("wrote {}\n", output.string()));
  return 0;
}

int run_compare(const CompareOptions& options) {
  if (options.folders.size() < 2) {
    throw UserError("a comparison needs two runs", "OUT", "hone compare out/run1 out/run2; hone report shows one");
  }
  const OutputRule rule = page_rule(options.folders, options.force);
  require_output(options.output, rule);
  std::set<std::string> names;
  bool unique = true;
  RunRecords records;
  for (const std::string& folder : options.folders) {
    Json record = read_run_record(folder, {.buckets = 3, .details = false});
    const std::string name = record["name"].get<std::string>();
    unique &= names.insert(name).second;
    records.emplace_back(name, std::move(record));
  }
  if (!unique) {
    for (size_t i = 0; i < records.size(); ++i) records[i].first = options.folders[i];
  }
  write_output(options.output, compare_page({options.folders.begin(), options.folders.end()}, nullptr), rule);
  if (options.json) {
    Json runs = Json::array();
    for (const auto& [name, record] : records) {
      runs.push_back({{"name", name},
                      {"folder", record["folder"]},
                      {"state", record["state"]["text"]},
                      {"step", record["step"]},
                      {"summary", record["summary"]}});
    }
    const std::optional<size_t> best = best_of(records);
    const Json result = {
        {"runs", runs}, {"best", best ? Json(records[*best].first) : Json()}, {"page", options.output}};
    print_text(result.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
    return 0;
  }
  const Terminal terminal = Terminal::of(1);
  print_text(summary_table(records, terminal.color, terminal.table_width()) +
             fmt::format("* least evaluation loss\nwrote {}\n", options.output));
  return 0;
}

}  // namespace hone
