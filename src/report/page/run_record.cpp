#include "report/page/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
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
#include "report/page/record_lines.h"
#include "report/page/series.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestLine = size_t{8} << 20;
constexpr size_t kMostDatasets = 12;   // series loss/NAME and eval_NAME_loss
constexpr size_t kMostWarnings = 100;  // different ones
constexpr size_t kMostConfig = 100'000;

/// The metrics that the page shows, in its order.
constexpr const char* kMetrics[] = {"loss",
                                    "eval_loss",
                                    "learning_rate",
                                    "grad_norm",
                                    "tokens_per_second",
                                    "step_time",
                                    "data/wait",
                                    "mfu",
                                    "memory/max_alloc",
                                    "memory/host_rss",
                                    "gpu/utilization",
                                    "gpu/power",
                                    "gpu/temperature",
                                    "mean_token_accuracy",
                                    "eval_mean_token_accuracy",
                                    "entropy",
                                    "router/aux_loss",
                                    "router/load_max_over_mean",
                                    "router/dead_experts",
                                    "router/entropy",
                                    "data/packing_efficiency",
                                    "generation/finished",
                                    "generation/tokens"};

bool is_dataset_loss(std::string_view name) {
  return name.starts_with("loss/") || (name.starts_with("eval_") && name.ends_with("_loss") && name != "eval_loss");
}

int64_t step_of(const Json& row) { return whole_number<int64_t>(row.value("step", Json())).value_or(-1); }

std::string text_of(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// Reads the rows of a file of JSON lines; notes what is left out. Returns whether the file exists.
bool each_row(const fs::path& path, std::vector<std::string>& notes, const std::function<void(const Json& row)>& row) {
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  const std::string name = path.filename().string();
  int64_t broken = 0;
  bool cut = false;
  try {
    const LinesRead read = each_line(path, kLongestLine, [&](std::string_view line, bool whole) {
      const Json json = parse_json(line);
      if (json.is_object() && step_of(json) >= 0) {
        row(json);
      } else if (!whole) {
        cut = true;
      } else if (!line.empty()) {
        ++broken;
      }
    });
    broken += read.too_long;
  } catch (const UserError& failed) {
    notes.push_back(fmt::format("{} cannot be read: {}", name, failed.message()));
  }
  if (cut) notes.push_back(name + ": the last line is not complete, and is left out");
  if (broken > 0) {
    notes.push_back(fmt::format("{}: {} line{} left out that {} not rows of a run", name, broken, plural(broken),
                                broken == 1 ? "is" : "are"));
  }
  return true;
}

/// metrics.jsonl as series.
class MetricSeries {
 public:
  void add(const Json& row) {
    ++lines_;
    const int64_t step = step_of(row);
    last_step_ = std::max(last_step_, step);
    bool late = false;
    for (const auto& [name, value] : row.items()) {
      const bool is_gap = value.is_null();
      if (name == "eta" && value.is_number()) left_ = value.get<double>();
      if (!(value.is_number() || is_gap) || !shown(name)) continue;
      const double number = is_gap ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
      if (!series_[name].add(step, number)) {
        late = true;
      } else if (!is_gap) {
        summarise(name, step, number);
      }
    }
    late_ += late;
  }

  /// The fields of RunSummary that are known.
  Json summary() const {
    Json all = Json::object();
    if (loss_) all["loss"] = *loss_;
    if (best_) {
      all["eval_loss"] = best_->second;
      all["eval_step"] = best_->first;
    }
    if (const auto rate = series_.find("tokens_per_second"); rate != series_.end()) {
      const std::vector<SeriesBucket> steps = rate->second.reduced(kRateBuckets);
      double sum = 0;
      int64_t points = 0;
      for (size_t i = steps.size() / 10; i < steps.size(); ++i) {
        if (steps[i].points == 0) continue;
        sum += steps[i].mean * static_cast<double>(steps[i].points);
        points += steps[i].points;
      }
      if (points > 0) all["tokens_per_second"] = sum / static_cast<double>(points);
    }
    if (memory_ > 0) all["memory"] = memory_;
    if (left_) all["seconds_left"] = *left_;
    return all;
  }

  Json json(size_t buckets) const {
    Json all = Json::object();
    const auto add = [&](const std::string& name, const Series& series) {
      all[name] = series_json(series.reduced(buckets));
    };
    for (const char* name : kMetrics) {
      if (const auto found = series_.find(name); found != series_.end()) add(name, found->second);
    }
    for (const auto& [name, series] : series_) {
      if (is_dataset_loss(name)) add(name, series);
    }
    return all;
  }

  int64_t lines() const { return lines_; }
  int64_t late() const { return late_; }
  int64_t last_step() const { return last_step_; }

 private:
  static constexpr size_t kRateBuckets = 1000;

  void summarise(const std::string& name, int64_t step, double value) {
    if (name == "loss") loss_ = value;
    if (name == "eval_loss" && step > 0 && (!best_ || value < best_->second)) best_ = {step, value};
    if (name == "memory/max_alloc") memory_ = std::max(memory_, value);
  }

  bool shown(const std::string& name) {
    if (std::find(std::begin(kMetrics), std::end(kMetrics), name) != std::end(kMetrics)) return true;
    if (!is_dataset_loss(name)) return false;
    return series_.contains(name) || datasets_++ < kMostDatasets;
  }

  std::map<std::string, Series> series_;
  size_t datasets_ = 0;
  int64_t lines_ = 0, late_ = 0, last_step_ = 0;
  std::optional<double> loss_;
  std::optional<std::pair<int64_t, double>> best_;  // step and evaluation loss
  std::optional<double> left_;                      // seconds
  double memory_ = 0;
};

/// The first and the last answer to each prompt of generations.jsonl.
Json answers_of(const fs::path& folder, const RecordLimits& limits, std::vector<std::string>& notes) {
  Json answers = Json::array();
  std::map<std::string, size_t> places;
  each_row(folder / "generations.jsonl", notes, [&](const Json& row) {
    const std::string prompt = text_of(row, "prompt");
    const Json answer = {{"step", step_of(row)},
                         {"text", clipped(text_of(row, "generated_text"), limits.text)},
                         {"finished", text_of(row, "finish_reason") == "stop"}};
    const auto place = places.find(prompt);
    if (place != places.end()) {
      answers[place->second]["last"] = answer;
    } else if (places.size() < limits.samples) {
      places[prompt] = answers.size();
      answers.push_back({{"prompt", clipped(prompt, limits.text)},
                         {"expected", clipped(text_of(row, "expected"), limits.text)},
                         {"first", answer}});
    }
  });
  return answers;
}

/// The warnings and errors of run.log, each text once, the latest last.
Json warnings_of(const fs::path& folder, std::vector<std::string>& notes) {
  struct Warning {
    std::string level, text, last;
    int64_t times = 0;
  };
  constexpr size_t kTime = 23, kLevel = 25, kText = 34;  // report/log.cpp
  std::vector<Warning> warnings;
  std::optional<Warning> open;  // its further lines may follow
  const auto close = [&] {
    if (!open) return;
    const auto same = [&](const Warning& warning) { return warning.text == open->text; };
    const auto found = std::find_if(warnings.begin(), warnings.end(), same);
    open->times = 1;
    if (found != warnings.end()) {
      open->times += found->times;
      warnings.erase(found);
    }
    warnings.push_back(*std::exchange(open, std::nullopt));
    if (warnings.size() > kMostWarnings) warnings.erase(warnings.begin());
  };
  std::error_code error;
  if (!fs::exists(folder / "run.log", error)) return nullptr;
  try {
    each_line(folder / "run.log", kLongestLine, [&](std::string_view line, bool) {
      const bool dated = line.size() >= kText && line[4] == '-' && line[13] == ':';
      if (!dated) {
        if (open && line.starts_with("  ")) open->text += "\n" + clipped(line.substr(2), 500);
        return;
      }
      close();
      const std::string_view level = line.substr(kLevel, 7);
      if (level != "WARNING" && level != "ERROR  ") return;
      open = Warning{.level = level == "WARNING" ? "warning" : "error",
                     .text = clipped(line.substr(kText), 1000),
                     .last = std::string(line.substr(0, kTime - 4))};
    });
    close();
  } catch (const UserError& failed) {
    notes.push_back("run.log cannot be read: " + failed.message());
  }
  Json all = Json::array();
  for (const Warning& warning : warnings) {
    all.push_back({{"level", warning.level},
                   {"text", without_secrets(warning.text)},
                   {"times", warning.times},
                   {"last", warning.last}});
  }
  return all;
}

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
  const std::string status = metadata.is_object() ? text_of(metadata, "status") : "";
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
  const std::string base = model.is_object() ? text_of(model, "model_name_or_path") : "";
  if (!base.empty() && info.value("lora", Json()).is_object()) {
    add("Merge the adapters into the model",
        {"merge", "--model", base, "--adapter", out, "--output", (folder / "merged").string()});
  }
  add("Write this page again", {"report", out});
  return commands;
}

/// Whether the key of a line "key: value" names a secret.
bool names_secret(std::string_view line) {
  const size_t begin = line.find_first_not_of(" -"), colon = line.find(": ");
  if (colon == std::string_view::npos || begin >= colon) return false;
  const std::string key = in_lower_case(std::string(line.substr(begin, colon - begin)));
  if (key.find(' ') != std::string::npos) return false;
  for (const char* end : {"password", "secret", "api_key", "access_token", "auth_token"}) {
    if (key.ends_with(end)) return true;
  }
  return false;
}

}  // namespace

std::string clipped(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

std::string without_secrets(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const bool last = newline == std::string_view::npos;
    std::string line(text.substr(0, newline));
    text.remove_prefix(last ? text.size() : newline + 1);
    const bool empty_value = line.ends_with(": null") || line.ends_with(": \"\"");
    if (names_secret(line) && !empty_value) line = line.substr(0, line.find(": ") + 2) + "…";
    for (size_t at = line.find("://"); at != std::string::npos; at = line.find("://", at + 3)) {
      const size_t begin = at + 3, end = line.find_first_of("/ \t\"'?#,", begin);
      const size_t sign = line.substr(0, end).rfind('@');
      if (sign != std::string::npos && sign > begin) line.replace(begin, sign - begin, "…");
    }
    clean += line;
    if (!last) clean += '\n';
  }
  return clean;
}

Json read_run_record(const fs::path& folder, const RecordLimits& limits) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw UserError("there is no such folder", folder.string(), "name the output_dir of a run");
  }
  std::vector<std::string> notes;
  MetricSeries metrics;
  const bool has_metrics = each_row(folder / "metrics.jsonl", notes, [&](const Json& row) { metrics.add(row); });
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
  Json warnings = warnings_of(folder, notes);
  if (!has_metrics && info.is_null() && config.is_null() && warnings.is_null()) {
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
                 {"series", metrics.json(limits.buckets)},
                 {"info", std::move(info)},
                 {"plan", std::move(plan)},
                 {"config", std::move(config)},
                 {"warnings", std::move(warnings)},
                 {"commands", std::move(commands)}};
  if (limits.details) {
    record["answers"] = answers_of(folder, limits, notes);
    LoadRecord load;
    each_row(folder / "expert_load.jsonl", notes, [&](const Json& row) { load.add(step_of(row), row); });
    record["load"] = load.json(limits.load_bytes);
  }
  record["notes"] = notes;
  return record;
}

}  // namespace hone
