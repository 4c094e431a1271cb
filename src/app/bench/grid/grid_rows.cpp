#include "app/bench/grid/grid_rows.h"

#include <fmt/format.h>

#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "app/bench/bench_report.h"
#include "core/base/error.h"
#include "core/base/program.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "report/metrics_file.h"
#include "report/terminal.h"
#include "train/plan/memory_fit.h"

namespace hone {
namespace {

constexpr size_t kKeptErrors = 4096;  // bytes of a failed scenario's standard error
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

/// The error that the program has printed (core/base/error.h).
struct PrintedError {
  std::string what, where, fix;
};

std::string after(const std::string& line, std::string_view label) {
  return line.starts_with(label) ? line.substr(line.find_first_not_of(' ', label.size())) : "";
}

/// The first error in the output, which has one of each rank; empty if there is none.
PrintedError printed_error(const std::string& output) {
  constexpr std::string_view kMark = "error: ";
  PrintedError error;
  for (const std::string& line : split_lines(output)) {
    const size_t mark = line.find(kMark);
    const bool begins = mark == 0 || (line.starts_with("rank ") && mark == line.find(": ") + 2);
    if (mark != std::string::npos && begins) {
      if (!error.what.empty()) break;
      error.what = line.substr(mark + kMark.size());
    } else if (line.starts_with("  where:")) {
      error.where = after(line, "  where:");
    } else if (line.starts_with("  fix:")) {
      error.fix = after(line, "  fix:");
    }
  }
  return error;
}

bool is_of_memory(const PrintedError& error) {
  if (error.where == kMemoryPlan) return true;
  for (const char* text : {"out of memory", "of memory left", "of host memory"}) {
    if (error.what.find(text) != std::string::npos) return true;
  }
  return false;
}

/// The object that bench step has printed. NCCL's lines (NCCL_DEBUG) may stand before and after it.
Json printed_object(const std::string& output) {
  const size_t begin = output.starts_with('{') ? 0 : output.find("\n{");
  const size_t end = output.rfind('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return parse_json(std::string_view(output).substr(begin, end + 1 - begin));
}

/// The end of a text, from the beginning of a line.
std::string last_lines(const std::string& text) {
  if (text.size() <= kKeptErrors) return text;
  const size_t line = text.find('\n', text.size() - kKeptErrors);
  return text.substr(line == std::string::npos ? text.size() - kKeptErrors : line + 1);
}

std::string last_line(const std::string& text) {
  const std::vector<std::string> lines = split_lines(text);
  return lines.empty() ? "" : lines.back();
}

struct Verdict {
  GridStatus status = GridStatus::kCrashed;
  std::string message, fix;
};

Verdict verdict_of(const CapturedProcess& process, double limit_s) {
  if (process.timed_out) {
    return {GridStatus::kTimedOut, fmt::format("it took longer than {:.4g} s", limit_s), "raise limit_s"};
  }
  const PrintedError error = printed_error(process.err);
  if (WIFSIGNALED(process.status)) {
    const int signal = WTERMSIG(process.status);
    const char* fix = signal == SIGKILL ? "the system kills programs when host memory runs out" : "";
    return {GridStatus::kCrashed, fmt::format("it was ended by signal {} ({})", signal, strsignal(signal)), fix};
  }
  const int code = WEXITSTATUS(process.status);
  if (is_of_memory(error)) return {GridStatus::kDoesNotFit, error.what, error.fix};
  if (code == static_cast<int>(ExitCode::kUserInput)) {
    return {GridStatus::kRefused, error.what.empty() ? last_line(process.err) : error.what, error.fix};
  }
  if (code == 0) return {GridStatus::kCrashed, "it wrote no results", ""};
  const std::string what = error.what.empty() ? last_line(process.err) : error.what;
  return {GridStatus::kCrashed, what.empty() ? fmt::format("it ended with exit code {}", code) : what, error.fix};
}

void add_failure(Json& row, const CapturedProcess& process, double limit_s) {
  const Verdict verdict = verdict_of(process, limit_s);
  row["status"] = name_of(verdict.status);
  row["message"] = verdict.message;
  row["fix"] = verdict.fix;
  if (WIFEXITED(process.status)) row["exit_code"] = WEXITSTATUS(process.status);
  if (WIFSIGNALED(process.status)) row["signal"] = WTERMSIG(process.status);
  row["stderr"] = last_lines(process.err);
}

}  // namespace

const std::vector<GridStatus>& grid_statuses() {
  static const std::vector<GridStatus> all = {GridStatus::kMeasured, GridStatus::kDoesNotFit, GridStatus::kRefused,
                                              GridStatus::kTimedOut, GridStatus::kCrashed};
  return all;
}

std::string name_of(GridStatus status) {
  switch (status) {
    case GridStatus::kMeasured:
      return "measured";
    case GridStatus::kDoesNotFit:
      return "does not fit";
    case GridStatus::kRefused:
      return "refused";
    case GridStatus::kTimedOut:
      return "timed out";
    case GridStatus::kCrashed:
      break;
  }
  return "crashed";
}

Json make_row(const GridScenario& scenario, const CapturedProcess& process, double limit_s) {
  Json settings = Json::object();
  for (const auto& [name, value] : scenario.settings) settings[name] = value;
  Json row = {{"status", name_of(GridStatus::kMeasured)},
              {"command", scenario.command_line()},
              {"scenario", settings},
              {"version", version()},
              {"date", utc_date()},
              {"wall_s", process.seconds},
              {"host_peak_bytes", process.peak_resident_bytes}};
  const bool ended_well = !process.timed_out && WIFEXITED(process.status) && WEXITSTATUS(process.status) == 0;
  Json result = ended_well ? printed_object(process.out) : Json();
  if (result.is_object()) {
    row["result"] = std::move(result);
  } else {
    add_failure(row, process, limit_s);
  }
  return row;
}

GridStatus status_of(const Json& row) {
  const std::string name = row.at("status").get<std::string>();
  for (const GridStatus status : grid_statuses()) {
    if (name == name_of(status)) return status;
  }
  return GridStatus::kCrashed;
}

GridRows::GridRows(std::filesystem::path path) : path_(std::move(path)) {
  if (const auto text = read_whole_file_if_there(path_, kMostBytes)) read(*text);
}

void GridRows::read(const std::string& text) {
  const size_t end = text.rfind('\n');
  const size_t whole = end == std::string::npos ? 0 : end + 1;
  unfinished_ = whole < text.size();
  if (unfinished_) whole_ = text.substr(0, whole);
  int number = 0;
  for (const std::string& line : split_lines(std::string_view(text).substr(0, whole))) {
    ++number;
    if (line.empty()) continue;
    Json row = parse_json(line);
    const auto is_text = [&](const char* name) { return row.contains(name) && row[name].is_string(); };
    if (!row.is_object() || !is_text("command") || !is_text("status")) {
      throw UserError("this is not a row of a grid", fmt::format("{}:{}", path_.string(), number),
                      "remove the line, or choose another --output");
    }
    const std::string command = row["command"];
    rows_.insert_or_assign(command, std::move(row));
  }
}

const Json* GridRows::find(const std::string& command_line) const {
  const auto found = rows_.find(command_line);
  return found == rows_.end() ? nullptr : &*found->second;
}

void GridRows::add(const Json& row) {
  if (unfinished_) write_durably(path_, whole_);
  unfinished_ = false;
  AppendFile(path_.string()).write(row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  rows_.insert_or_assign(row.at("command").get<std::string>(), row);
}

}  // namespace hone
