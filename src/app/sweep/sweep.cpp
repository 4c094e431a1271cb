#include "app/sweep/sweep.h"

#include <fmt/format.h>

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <system_error>
#include <thread>

#include "app/launch/rank_processes.h"
#include "app/launched_ranks.h"
#include "app/output.h"
#include "app/report/report.h"
#include "app/sweep/stop_rule.h"
#include "app/sweep/sweep_file.h"
#include "app/sweep/sweep_record.h"
#include "config/output_name.h"
#include "config/resolve.h"
#include "config/resolved_yaml.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/files/descriptor.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/files/folder_lock.h"
#include "core/text/json.h"
#include "core/text/shell_words.h"
#include "report/humanise.h"
#include "report/page/page.h"
#include "report/page/record_text.h"
#include "report/page/run_record.h"
#include "report/terminal.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kPauseOfSweep = std::chrono::milliseconds(50);
constexpr auto kEvaluationsPause = std::chrono::milliseconds(200);
constexpr const char* kRecord = "sweep.json";
constexpr const char* kPage = "compare.html";

/// A run with what is known before it starts.
struct PlannedSweepRun {
  const SweepRun* run = nullptr;
  fs::path folder;
  std::vector<std::string> command = {};  ///< the words after `hone`
  Json config = {};                       ///< the stated keys with their resolved values
  std::string refused = {};               ///< why its settings are not possible; "": they are
};

PlannedSweepRun plan_of(const SweepFile& sweep, const SweepRun& run, const SweepOptions& options,
                        const fs::path& output) {
  PlannedSweepRun planned{.run = &run, .folder = output / run.name};
  std::vector<std::string> words = sweep.words(run, options.overrides);
  words.push_back("output_dir=" + with_literal_braces(planned.folder.string()));
  words.push_back("run_name=" + run.name);
  words.push_back("resume_from_checkpoint=auto");
  if (sweep.ranks > 1) planned.command = {"launch", "-n", std::to_string(sweep.ranks), "--"};
  planned.command.push_back("train");
  if (!sweep.base.empty()) planned.command.push_back(sweep.base);
  planned.command.insert(planned.command.end(), words.begin(), words.end());
  try {
    const ResolvedConfig resolved = load_config(sweep.base, words, {sweep.ranks});
    require_keys(resolved, {"model_name_or_path", "datasets"});
    planned.config = Json::object();
    for (const auto& [key, value] : resolved_pairs(resolved.run)) {
      if (resolved.states(key)) planned.config[key] = value;
    }
  } catch (const UserError& error) {
    planned.refused = error.what();
  }
  return planned;
}

std::vector<PlannedSweepRun> plan_all(const SweepFile& sweep, const SweepOptions& options, const fs::path& output) {
  std::vector<PlannedSweepRun> runs;
  for (const SweepRun& run : sweep.runs) runs.push_back(plan_of(sweep, run, options, output));
  const bool none =
      std::all_of(runs.begin(), runs.end(), [](const PlannedSweepRun& run) { return !run.refused.empty(); });
  if (none) load_config(sweep.base, sweep.words(sweep.runs.front(), options.overrides), {sweep.ranks});  // throws why
  if (none) throw UserError("every run is refused: " + runs.front().refused, options.file, "");
  return runs;
}

/// Whether the folder has a complete run.
bool is_complete(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / "training_info.json", error)) return false;
  return read_run_record(folder, {.buckets = 3, .details = false})["state"]["kind"] == "done";
}

/// Throws UserError if the folder has a run with other settings.
void require_same_settings(const PlannedSweepRun& planned, const SweepRow& row) {
  std::error_code error;
  if (!fs::exists(planned.folder / "config.resolved.yaml", error) || !planned.refused.empty()) return;
  const char* const fix = "name another folder with --output, or move this one away";
  if (!row.config.is_object())
    throw UserError("the folder has a run that is not of this sweep", planned.folder.string(), fix);
  const std::vector<std::string> changed = changed_keys(*row.config, planned.config);
  if (changed.empty()) return;
  throw UserError("the folder has a run with other settings: " + changed.front() +
                      (changed.size() > 1 ? fmt::format(" and {} more", changed.size() - 1) : ""),
                  planned.folder.string(), fix);
}

/// The error that a program's log ends with, or how the program ended.
std::string why_failed(const fs::path& log, int status) {
  const std::string ended = WIFSIGNALED(status)
                                ? fmt::format("ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                                : fmt::format("exit code {}", WEXITSTATUS(status));
  try {
    const FileBytes file(log);
    const uint64_t count = std::min<uint64_t>(file.size(), 16 << 10);
    const std::string end = file.read(file.size() - count, count);
    const size_t at = end.rfind("error: ");
    if (at != std::string::npos && (at == 0 || end[at - 1] == '\n'))
      return clipped(end.substr(at + 7, end.find_last_not_of('\n') - at - 6), 600);
  } catch (const UserError&) {
  }
  return ended;
}

struct EndOfRun {
  int status = 0;
  int signal = 0;                  ///< to this process, passed on to the run; 0: none
  std::optional<std::string> why;  ///< a rule has ended it
  double seconds = 0;
};

/// A rule: why a run with these evaluations ends, or nothing if it goes on.
using EndsEarly = std::function<std::optional<std::string>(const std::vector<Evaluation>&)>;

/// Runs a command to its end, or until a signal or the rule ends it: it then saves and ends by itself, unless a second
/// signal is sent.
EndOfRun run_to_end(const PlannedSweepRun& planned, const fs::path& log, const EndsEarly& rule,
                    CaughtSignals& signals) {
  std::vector<std::string> command = {own_program()};
  command.insert(command.end(), planned.command.begin(), planned.command.end());
  const Descriptor output(open_to_append(log));
  if (!output.open()) throw UserError("the log cannot be written: " + std::string(std::strerror(errno)), log.string());
  const Clock::time_point begin = Clock::now();
  const pid_t pid = start_process(command, {}, {output.descriptor(), output.descriptor()});
  EndOfRun end;
  Clock::time_point looked = begin;
  RunEvaluations evaluations(planned.folder);
  // What was there before is not judged: until it adds to its metrics, the run would not save at a signal.
  size_t judged = evaluations.read_on().size();
  while (::waitpid(pid, &end.status, WNOHANG) != pid) {
    const int signal = signals.take();
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      ::kill(pid, end.signal == 0 ? signal : SIGKILL);
      end.signal = signal;
    }
    if (rule && !end.why && Clock::now() - looked > kEvaluationsPause) {
      looked = Clock::now();
      const std::vector<Evaluation>& run = evaluations.read_on();
      if (run.size() != judged) end.why = rule(run);
      judged = run.size();
      if (end.why) ::kill(pid, SIGTERM);
    }
    std::this_thread::sleep_for(kPauseOfSweep);
  }
  end.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return end;
}

class Sweep {
 public:
  Sweep(const SweepOptions& options, SweepFile file, const fs::path& output)
      : options_(options),
        file_(std::move(file)),
        output_(output),
        runs_(plan_all(file_, options, output)),
        record_(output),
        rule_(output_rule(
            {{options.file, "the sweep"}, {file_.base, "the configuration"}}, options.force,
            [](std::string_view beginning) { return SweepRecord::is_record(beginning) || is_page(beginning); })),
        stop_(file_.stop_worse_after) {
    for (const PlannedSweepRun& planned : runs_) require_same_settings(planned, record_.row(planned.run->name));
  }

  void list() {
    std::string text;
    for (const PlannedSweepRun& planned : runs_) {
      const SweepRow& row = record_.row(planned.run->name);
      const std::string state = planned.refused.empty() ? name_of(row.status) : "refused: " + planned.refused;
      text += fmt::format("hone {}  # {}\n", one_line(shell_words(planned.command)), one_line(state));
    }
    print_text(text);
  }

  int run() {
    for (const char* name : {kRecord, kPage}) require_output(output_ / name, rule_);
    fs::create_directories(output_ / "logs");
    const FolderLock lock(output_);
    CaughtSignals signals;
    std::vector<size_t> left(runs_.size());
    std::iota(left.begin(), left.end(), size_t{0});
    bool goes_on = true;
    for (const int64_t rung : file_.rungs) {
      goes_on = goes_on && run_each(left, rung, signals);
      if (goes_on) left = better_of(left, rung);
    }
    goes_on = goes_on && run_each(left, std::nullopt, signals);
    return finish(!goes_on);
  }

 private:
  void say(size_t index, const std::string& text) const {
    print_error(
        fmt::format("[{}/{}] {}: {}\n", index + 1, runs_.size(), one_line(runs_[index].run->name), one_line(text)));
  }

  /// Runs these one after another, each to an evaluation at step `rung`, or to its end. Returns false if a signal has
  /// stopped the sweep.
  bool run_each(const std::vector<size_t>& runs, std::optional<int64_t> rung, CaughtSignals& signals) {
    return std::all_of(runs.begin(), runs.end(), [&](size_t index) { return run_one(index, rung, signals); });
  }

  /// Those of the runs that go on after a rung. The others end early. What failed, or had no evaluation so late, is
  /// out. The evaluations in their folders decide, so that a sweep that was killed decides again in the same way.
  std::vector<size_t> better_of(const std::vector<size_t>& runs, int64_t rung) {
    std::vector<size_t> there, better;
    std::vector<double> losses;
    for (const size_t index : runs) {
      const std::optional<double> loss = loss_at(RunEvaluations(runs_[index].folder).read_on(), rung);
      if (!loss || record_.row(runs_[index].run->name).status == SweepStatus::kFailed) continue;
      there.push_back(index);
      losses.push_back(*loss);
    }
    const std::vector<bool> goes_on = better_part(losses, file_.keep);
    const auto kept = std::count(goes_on.begin(), goes_on.end(), true);
    for (size_t i = 0; i < there.size(); ++i) {
      SweepRow& row = record_.row(runs_[there[i]].run->name);
      if (goes_on[i]) {
        better.push_back(there[i]);
      } else if (row.status != SweepStatus::kFinished) {
        const bool is_new = row.status != SweepStatus::kEndedEarly;
        row.status = SweepStatus::kEndedEarly;
        row.why =
            fmt::format("evaluation loss {:.4f} at step {}, where {} of {} go on", losses[i], rung, kept, there.size());
        if (is_new) say(there[i], text_of(row));
      }
    }
    write_record();
    return better;
  }

  /// Runs to an evaluation at step `rung`, or to the end. Returns false if a signal has stopped the sweep.
  bool run_one(size_t index, std::optional<int64_t> rung, CaughtSignals& signals) {
    const PlannedSweepRun& planned = runs_[index];
    const std::string& name = planned.run->name;
    SweepRow& row = record_.row(name);
    if (!planned.refused.empty()) {
      row.status = SweepStatus::kFailed;  // what is known of an earlier start stays
      row.why = planned.refused;
      say(index, "refused: " + planned.refused);
      return write_record();
    }
    const bool was_begun = row.config.is_object();
    const bool was_ended = row.status == SweepStatus::kEndedEarly && stops_worse();
    const bool is_there = rung && was_begun && loss_at(RunEvaluations(planned.folder).read_on(), *rung);
    if (was_begun && !was_ended && is_complete(planned.folder)) {
      if (told_.insert(index).second) say(index, "finished before");
      row.status = SweepStatus::kFinished;
    } else if (was_ended || is_there) {
      if (row.status != SweepStatus::kEndedEarly) row.status = SweepStatus::kPaused;
      if (told_.insert(index).second) say(index, name_of(row.status) + " before");
    } else {
      row.status = SweepStatus::kRunning;
      row.why.clear();
      row.config = planned.config;
      write_record();
      told_.insert(index);
      say(index, rung ? fmt::format("runs to step {}", *rung) : "runs");
      const fs::path log = output_ / "logs" / (name + ".log");
      settle(planned, log, run_to_end(planned, log, rule_until(rung), signals), row);
      if (rung && row.status == SweepStatus::kEndedEarly) row.status = SweepStatus::kPaused;
      say(index, text_of(row));
    }
    summarise(planned, row);
    if (row.status == SweepStatus::kFinished || row.status == SweepStatus::kEndedEarly)
      stop_.add(RunEvaluations(planned.folder).read_on());
    write_record();
    return row.status != SweepStatus::kInterrupted;
  }

  /// What ends a run before its end; empty: nothing.
  EndsEarly rule_until(std::optional<int64_t> rung) const {
    if (rung) {
      return [step = *rung](const std::vector<Evaluation>& run) -> std::optional<std::string> {
        if (!loss_at(run, step)) return std::nullopt;
        return fmt::format("evaluated at step {}", run.back().step);
      };
    }
    if (!stops_worse()) return {};
    return [this](const std::vector<Evaluation>& run) -> std::optional<std::string> {
      const std::optional<double> median = stop_.worse_than(run);
      if (!median) return std::nullopt;
      return fmt::format("evaluation loss above {:.4f}, the median of the runs before", *median);
    };
  }

  bool stops_worse() const { return options_.stop_worse || file_.stop_worse; }

  static void settle(const PlannedSweepRun& planned, const fs::path& log, const EndOfRun& end, SweepRow& row) {
    row.seconds = end.seconds;
    const bool saved = WIFEXITED(end.status) && WEXITSTATUS(end.status) == static_cast<int>(ExitCode::kResumable);
    if (WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0 && is_complete(planned.folder)) {
      row.status = SweepStatus::kFinished;
    } else if (end.signal != 0) {
      row.status = SweepStatus::kInterrupted;
    } else if (end.why && saved) {
      row.status = SweepStatus::kEndedEarly;
      row.why = *end.why;
    } else if (saved) {
      row.status = SweepStatus::kInterrupted;  // somebody else has sent it a signal
    } else {
      row.status = SweepStatus::kFailed;
      row.why = why_failed(log, end.status);
    }
  }

  static std::string text_of(const SweepRow& row) {
    return fmt::format("{}{} ({})", name_of(row.status), row.why.empty() ? "" : ": " + row.why,
                       human_duration(row.seconds));
  }

  static void summarise(const PlannedSweepRun& planned, SweepRow& row) {
    try {
      row.summary = Json(read_run_record(planned.folder, {.buckets = 3, .details = false})["summary"]);
    } catch (const UserError&) {  // it has written nothing
      row.summary = Json();
    }
  }

  bool write_record() {
    write_output(output_ / kRecord, record_.text(file_, options_.file, output_, best_), rule_);
    return true;
  }

  /// The records of the runs that have written something, and the reasons of those that failed.
  void collect(RunRecords& records, std::vector<fs::path>& folders, Json& failed) {
    for (const PlannedSweepRun& planned : runs_) {
      const SweepRow& row = record_.row(planned.run->name);
      if (row.status == SweepStatus::kFailed) failed.push_back({{"name", planned.run->name}, {"why", row.why}});
      if (row.status == SweepStatus::kWaiting || !planned.refused.empty()) continue;
      try {
        Json record = read_run_record(planned.folder, {.buckets = 3, .details = false});
        record["state"]["text"] = name_of(row.status);
        records.emplace_back(planned.run->name, std::move(record));
        folders.push_back(planned.folder);
      } catch (const UserError&) {  // it failed before it wrote anything
      }
    }
  }

  int finish(bool stopped) {
    RunRecords records;
    std::vector<fs::path> folders;
    Json failed = Json::array();
    collect(records, folders, failed);
    const std::optional<size_t> best = best_of(records);
    if (best) best_ = records[*best].first;
    write_record();
    if (!folders.empty()) {
      const Json extra = {{"title", "Sweep " + fs::path(options_.file).stem().string()},
                          {"sweep", {{"failed", failed}}}};
      write_output(output_ / kPage, compare_page(folders, extra), rule_);
    }
    const Terminal terminal = Terminal::of(1);
    std::string text = records.empty() ? "" : summary_table(records, terminal.color, terminal.table_width());
    for (const Json& run : failed) {
      text += fmt::format("failed: {}: {}\n", one_line(run["name"].get<std::string>()),
                          one_line(run["why"].get<std::string>()));
    }
    if (best)
      text += fmt::format("best: {} (evaluation loss {})\n", one_line(best_),
                          fixed_number((*records[*best].second["summary"].find("eval_loss")).get<double>(), 4));
    if (!best && !records.empty())
      text += "no run has been evaluated: state eval_datasets or val_split, and eval_steps\n";
    print_text(text + fmt::format("in {}{}\n", (output_ / kRecord).string(),
                                  folders.empty() ? "" : std::string(" and ") + kPage));
    if (stopped) {
      print_error("stopped; the same command goes on\n");
      return static_cast<int>(ExitCode::kResumable);
    }
    return static_cast<int>(failed.empty() ? ExitCode::kOk : ExitCode::kCheckFailed);
  }

  const SweepOptions& options_;
  const SweepFile file_;
  const fs::path output_;
  std::vector<PlannedSweepRun> runs_;
  SweepRecord record_;
  OutputRule rule_;
  StopRule stop_;
  std::set<size_t> told_;  // runs of which this process has said something
  std::string best_;
};

}  // namespace

int run_sweep(const SweepOptions& options) {
  if (is_launched()) {
    throw UserError("a sweep starts the ranks of its runs itself", "hone launch",
                    "run hone sweep without it, and state ranks in the file");
  }
  SweepFile file = read_sweep_file(options.file, options.overrides);
  if (options.stop_worse && !file.rungs.empty())
    throw UserError("halving and --stop-worse both end runs early", options.file, "keep one");
  const fs::path output = options.output.empty() ? fs::path(options.file).stem() : fs::path(options.output);
  Sweep sweep(options, std::move(file), output);
  if (!options.dry_run) return sweep.run();
  sweep.list();
  return 0;
}

}  // namespace hone
