#include "app/bench/grid/bench_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "app/bench/grid/grid_file.h"
#include "app/bench/grid/grid_report.h"
#include "app/bench/grid/grid_rows.h"
#include "app/bench/ops_report.h"
#include "app/launch/captured_process.h"
#include "app/launched_ranks.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/files/file_bytes.h"
#include "core/files/folder_lock.h"
#include "core/text/json.h"
#include "report/humanise.h"
#include "report/terminal.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

fs::path output_of(const BenchGridOptions& options) {
  return options.output.empty() ? fs::path(options.file).stem().string() + "-grid" : options.output;
}

/// Whether a row of this status is measured again.
class Retry {
 public:
  explicit Retry(const std::vector<std::string>& words) {
    std::vector<std::string> known = {"failed", "all"};
    for (const GridStatus status : grid_statuses()) known.push_back(dashed(status));
    for (const std::string& word : words) {
      if (std::find(known.begin(), known.end(), word) == known.end()) {
        throw UserError(fmt::format("'{}' does not say what to run again.{}", word, did_you_mean(word, known)),
                        "--retry", "use failed, all, or does-not-fit, refused, timed-out, crashed, measured");
      }
      for (const GridStatus status : grid_statuses()) {
        const bool failed = word == "failed" && status != GridStatus::kMeasured;
        if (failed || word == "all" || word == dashed(status)) statuses_.push_back(status);
      }
    }
  }

  bool operator()(const Json& row) const {
    return std::find(statuses_.begin(), statuses_.end(), status_of(row)) != statuses_.end();
  }

 private:
  static std::string dashed(GridStatus status) {
    std::string name = name_of(status);
    std::replace(name.begin(), name.end(), ' ', '-');
    return name;
  }

  std::vector<GridStatus> statuses_;
};

/// The scenarios to run, as numbers.
std::vector<size_t> missing(const GridFile& grid, const GridRows& rows, const Retry& retry) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < grid.scenarios.size(); ++i) {
    const Json* row = rows.find(grid.scenarios[i].command_line());
    if (!row || retry(*row)) numbers.push_back(i);
  }
  return numbers;
}

std::string counted(size_t count) { return fmt::format("{} scenario{}", count, plural(static_cast<int64_t>(count))); }

/// The rule for grid.jsonl and grid.csv, which a grid that goes on adds to.
OutputRule grid_rule(const BenchGridOptions& options, const fs::path& rows) {
  std::error_code error;  // set if there are no rows yet
  const bool with_itself = fs::equivalent(options.compare, rows, error);
  return output_rule({{options.file, "the grid"}, {with_itself ? "" : options.compare, "the earlier grid"}},
                     options.force, [](std::string_view beginning) {
                       return beginning.empty() || beginning.starts_with("status,") || beginning.starts_with("{\"");
                     });
}

/// Runs scenarios one after another. Returns whether all were; a signal stops it.
bool run_scenarios(const GridFile& grid, const std::vector<size_t>& numbers, GridRows& rows,
                   const std::function<void()>& write_csv) {
  CaughtSignals signals;
  for (const size_t i : numbers) {
    const GridScenario& scenario = grid.scenarios[i];
    print_error(fmt::format("[{}/{}] {}\n", i + 1, grid.scenarios.size(), one_line(scenario.command_line())));
    std::vector<std::string> command = {own_program()};
    command.insert(command.end(), scenario.command.begin(), scenario.command.end());
    const CapturedProcess process = run_captured(command, grid.limit_s, signals);
    if (process.stopped_by != 0) return false;
    const Json row = make_row(scenario, process, grid.limit_s);
    rows.add(row);
    write_csv();
    print_error(fmt::format("    {} ({})\n", row_line(row), human_duration(process.seconds)));
  }
  return true;
}

void list_commands(const GridFile& grid, const GridRows& rows) {
  std::string text;
  for (const GridScenario& scenario : grid.scenarios) {
    const Json* row = rows.find(scenario.command_line());
    text += one_line(scenario.command_line()) + (row ? fmt::format("  # {}", name_of(status_of(*row))) : "") + "\n";
  }
  print_text(text);
}

/// Whether a scenario was refused, timed out or crashed, or is slower than before.
bool has_failed(const GridFile& grid, const GridRows& rows, const GridRows* before) {
  return std::any_of(grid.scenarios.begin(), grid.scenarios.end(), [&](const GridScenario& scenario) {
    const std::string command = scenario.command_line();
    const Json* row = rows.find(command);
    if (!row) return false;
    const GridStatus status = status_of(*row);
    const std::optional<double> share = share_of(*row, before ? before->find(command) : nullptr);
    return (status != GridStatus::kMeasured && status != GridStatus::kDoesNotFit) ||
           share.value_or(1) * kBenchTolerance < 1;
  });
}

GridFile grid_of(const BenchGridOptions& options, const std::vector<GridKey>& keys) {
  GridFile grid = read_grid_file(options.file, keys, options.sizes);
  if (!options.memory.empty()) grid.memory = parse_grid_memory(options.memory, "--memory");
  keep_only(grid, options.only, keys);
  for (const std::string& note : grid.notes) print_error("warning: " + note + "\n");
  return grid;
}

}  // namespace

int run_bench_grid(const BenchGridOptions& options, const std::vector<GridKey>& keys) {
  if (is_launched()) {
    throw UserError("a grid starts the ranks of its scenarios itself", "hone launch",
                    "run hone bench grid without it, and state ranks in the file");
  }
  const GridFile grid = grid_of(options, keys);
  const Retry retry(options.retry);
  std::optional<GridRows> before;
  if (!options.compare.empty()) {
    require_regular_file(options.compare);
    before.emplace(options.compare);
  }
  const fs::path folder = output_of(options);
  if (options.dry_run) {
    list_commands(grid, GridRows(folder / "grid.jsonl"));
    return 0;
  }
  const OutputRule rule = grid_rule(options, folder / "grid.jsonl");
  for (const char* name : {"grid.jsonl", "grid.csv"}) require_output(folder / name, rule);
  fs::create_directories(folder);
  const FolderLock lock(folder);
  GridRows rows(folder / "grid.jsonl");
  const auto write_csv = [&] { write_output(folder / "grid.csv", grid_csv(grid, rows), rule); };
  const std::vector<size_t> numbers = missing(grid, rows, retry);
  print_error(fmt::format("{}, {} to run\n", counted(grid.scenarios.size()), numbers.size()));
  const bool whole = run_scenarios(grid, numbers, rows, write_csv);
  write_csv();
  const Terminal terminal = Terminal::of(1);
  const GridRows* const compared = before ? &*before : nullptr;
  print_text(grid_table(grid, rows, compared, terminal.color, terminal.table_width()));
  print_text(fmt::format("\n{}\nin {} and grid.csv\n", grid_summary(grid, rows), (folder / "grid.jsonl").string()));
  if (!whole) {
    print_error("stopped; the same command goes on with the scenarios that were not run\n");
    return static_cast<int>(ExitCode::kResumable);
  }
  return static_cast<int>(has_failed(grid, rows, compared) ? ExitCode::kCheckFailed : ExitCode::kOk);
}

}  // namespace hone
