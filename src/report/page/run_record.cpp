#include "report/page/run_record.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/shell_words.h"
#include "core/text/untrusted_json.h"
#include "report/page/load_record.h"
#include "report/page/metric_record.h"
#include "report/page/record_lines.h"
#include "report/page/record_rows.h"
#include "report/page/record_text.h"
#include "report/page/warning_record.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostConfig = 100'000;

/// The JSON object of a file, or null.
Json object_of(const fs::path& path, std::vector<std::string>& notes) {
  constexpr uint64_t kMost = 1 << 20;
  try {
    const std::optional<std::string> text = read_whole_file_if_there(path, kMost);
    if (!text) return nullptr;
    Json json = parse_json(*text);
    if (json.is_object()) return json;
    notes.push_back(path.filename().string() + " is not JSON, and is left out");
  } catch (const UserError& failed) {
    notes.push_back(fmt::format("{} cannot be read: {}", path.filename().string(), failed.message()));
  }
  return nullptr;
}

/// How the run ended. Its training_info.json is of an earlier start if later steps have been logged.
Json state_of(const Json& info, int64_t step) {
  const Json metadata = info.is_object() ? info.value("metadata", Json::object()) : Json::object();
  const Json metrics = info.is_object() ? info.value("metrics", Json::object()) : Json::object();
  const std::string status = metadata.is_object() ? row_text(metadata, "status") : "";
  const bool is_last =
      metrics.is_object() && whole_number<int64_t>(metrics.value("global_step", Json())).value_or(-1) >= step;
  if (status.empty() || !is_last)
    return {{"kind", "open"}, {"text", "no end recorded: it runs, or was ended by force"}};
  const bool done = status.starts_with("completed") || status.starts_with("stopped early");
  return {{"kind", done ? "done" : "stopped"}, {"text", status}};
}

Json commands_of(const fs::path& folder, const Json& info, bool has_config) {
  Json commands = Json::array();
  const std::string out = folder.string(), config = (folder / "config.resolved.yaml").string();
  const auto add = [&](const char* what, const std::vector<std::string>& words) {
    commands.push_back({{"what", what}, {"line", "hone " + shell_words(words)}});
  };
  if (has_config) {
    add("Go on where it stopped", {"train", config, "resume=auto"});
    add("Evaluate what it has trained", {"eval", config, "--checkpoint", out});
  }
  add("Talk to the model", {"chat", "--model", out});
  const Json model = info.is_object() ? info.value("model", Json()) : Json();
  const std::string base = model.is_object() ? row_text(model, "model_name_or_path") : "";
  if (!base.empty() && info.value("lora", Json()).is_object()) {
    add("Merge the adapters into the model",
        {"merge", "--model", base, "--adapter", out, "--output", (folder / "merged").string()});
  }
  add("Write this page again", {"report", out});
  return commands;
}

}  // namespace

/// The files that grow, and what their lines add up to.
struct RunRecordReader::Files {
  explicit Files(fs::path of)
      : folder(std::move(of)),
        metrics(folder / "metrics.jsonl"),
        answers(folder / "generations.jsonl"),
        load(folder / "expert_load.jsonl"),
        log(folder / "run.log", kLongestRecordLine) {}

  /// The warnings of run.log, or null.
  Json read_warnings(std::vector<std::string>& notes) {
    try {
      log.read_on([this] { warnings = {}; }, [this](std::string_view line) { warnings.add(line); });
    } catch (const UserError& failed) {
      notes.push_back("run.log cannot be read: " + failed.message());
    }
    if (!log.there()) return nullptr;
    WarningRecord all = warnings;
    all.add(log.unfinished());
    return all.json();
  }

  fs::path folder;
  RecordOfRows<MetricRecord> metrics;
  RecordOfRows<AnswerRecord> answers;
  RecordOfRows<LoadRecord> load;
  FollowedLines log;
  WarningRecord warnings;
};

RunRecordReader::RunRecordReader(fs::path folder) : files_(std::make_unique<Files>(std::move(folder))) {}
RunRecordReader::~RunRecordReader() = default;

Json RunRecordReader::read(const RecordLimits& limits) {
  const fs::path& folder = files_->folder;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw UserError("there is no such folder", folder.string(), "name the output_dir of a run");
  }
  std::vector<std::string> notes;
  const MetricRecord& metrics = files_->metrics.read_on();
  files_->metrics.rows().note(notes);
  if (metrics.late() > 0) {
    notes.push_back(fmt::format("metrics.jsonl: {} line{} left out of steps that came before", metrics.late(),
                                plural(metrics.late())));
  }
  Json info = object_of(folder / "training_info.json", notes), plan = object_of(folder / "run_plan.json", notes);
  Json config = nullptr;
  try {
    if (const auto text = read_whole_file_if_there(folder / "config.resolved.yaml", kMostTextBytes)) {
      config = clipped(without_secrets(*text), kMostConfig);
    }
  } catch (const UserError& failed) {
    notes.push_back("config.resolved.yaml cannot be read: " + failed.message());
  }
  Json warnings = files_->read_warnings(notes);
  if (!files_->metrics.rows().there() && info.is_null() && config.is_null() && warnings.is_null()) {
    throw UserError(
        "the folder holds no run: neither metrics.jsonl nor config.resolved.yaml, training_info.json or "
        "run.log",
        folder.string(), "name the output_dir of a run");
  }
  const fs::path whole = fs::weakly_canonical(folder, error);
  const int64_t planned = plan.is_object() ? whole_number<int64_t>(plan.value("total_steps", Json())).value_or(0) : 0;
  Json summary = metrics.summary();
  if (const Json metadata = info.is_object() ? info.value("metadata", Json()) : Json(); metadata.is_object()) {
    if (const Json runtime = metadata.value("train_runtime", Json()); runtime.is_number()) summary["seconds"] = runtime;
  }
  Json commands = limits.details ? commands_of(folder, info, config.is_string()) : Json(nullptr);
  Json record = {{"name", (whole.empty() ? folder : whole).filename().string()},
                 {"folder", folder.string()},
                 {"state", state_of(info, metrics.last_step())},
                 {"step", metrics.last_step()},
                 {"total_steps", planned},
                 {"lines", metrics.lines()},
                 {"summary", std::move(summary)},
                 {"series", metrics.series(limits.buckets)},
                 {"info", std::move(info)},
                 {"plan", std::move(plan)},
                 {"config", std::move(config)},
                 {"warnings", std::move(warnings)},
                 {"commands", std::move(commands)}};
  if (limits.details) {
    record["answers"] = files_->answers.read_on().json(limits.samples, limits.text);
    files_->answers.rows().note(notes);
    record["load"] = files_->load.read_on().json(limits.load_bytes);
    files_->load.rows().note(notes);
  }
  record["notes"] = notes;
  return record;
}

Json read_run_record(const fs::path& folder, const RecordLimits& limits) {
  return RunRecordReader(folder).read(limits);
}

}  // namespace hone
