#include "app/sweep/sweep_record.h"

#include <fmt/format.h>

#include <set>

#include "core/base/error.h"
#include "core/base/program.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

namespace {

constexpr const char* kNames[] = {"waiting", "running", "finished", "paused", "ended early", "interrupted", "failed"};

std::string text_of(const Json& row, const char* key) {
  const Json value = row.value(key, Json());
  return value.is_string() ? value.get<std::string>() : std::string();
}

Json to_json(const std::string& name, const std::filesystem::path& folder, const SweepRow& row) {
  return {{"name", name},
          {"folder", (folder / name).string()},
          {"status", name_of(row.status)},
          {"why", row.why},
          {"seconds", row.seconds},
          {"config", *row.config},
          {"summary", *row.summary}};
}

}  // namespace

std::string name_of(SweepStatus status) { return kNames[static_cast<size_t>(status)]; }

SweepRecord::SweepRecord(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "sweep.json";
  const std::optional<Json> json = read_json_if_there(path);
  if (!json) return;
  const auto refuse = [&] {
    throw UserError("the file is not the record of a sweep", path.string(),
                    "name another folder with --output, or move the file away");
  };
  if (!json->is_object() || !json->contains("hone_sweep") || !json->value("runs", Json()).is_array()) refuse();
  for (const Json& run : (*json)["runs"]) {
    if (!run.is_object() || text_of(run, "name").empty()) refuse();
    SweepRow row;
    const std::string status = text_of(run, "status");
    for (size_t i = 0; i < std::size(kNames); ++i) {
      if (status == kNames[i]) row.status = static_cast<SweepStatus>(i);
    }
    if (row.status == SweepStatus::kRunning) row.status = SweepStatus::kInterrupted;  // the sweep was killed
    row.why = text_of(run, "why");
    if (const Json seconds = run.value("seconds", Json()); seconds.is_number()) row.seconds = seconds.get<double>();
    if (const Json config = run.value("config", Json()); config.is_object()) row.config = config;
    if (const Json summary = run.value("summary", Json()); summary.is_object()) row.summary = summary;
    rows_[text_of(run, "name")] = std::move(row);
  }
}

std::string SweepRecord::text(const SweepFile& sweep, const std::string& file, const std::filesystem::path& folder,
                              const std::string& best) const {
  Json runs = Json::array();
  std::set<std::string> written;
  for (const SweepRun& run : sweep.runs) {
    const auto found = rows_.find(run.name);
    Json row = to_json(run.name, folder, found == rows_.end() ? SweepRow() : found->second);
    Json settings = Json::object();
    for (const auto& [key, value] : run.settings) settings[key] = value;
    row["settings"] = std::move(settings);
    runs.push_back(std::move(row));
    written.insert(run.name);
  }
  for (const auto& [name, row] : rows_) {
    if (!written.contains(name)) runs.push_back(to_json(name, folder, row));
  }
  const Json json = {{"hone_sweep", version()},
                     {"file", file},
                     {"runs", std::move(runs)},
                     {"best", best.empty() ? Json() : Json(best)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<std::string> changed_keys(const Json& before, const Json& now) {
  std::vector<std::string> changed;
  const auto value_in = [](const Json& config, const std::string& key) {
    const auto found = config.find(key);
    if (found == config.end()) return std::string("not set");
    return found->is_string() ? found->get<std::string>() : found->dump();
  };
  const auto compare = [&](const std::string& key) {
    const std::string old = value_in(before, key), value = value_in(now, key);
    if (old != value) changed.push_back(fmt::format("{} ({} before, {} now)", key, old, value));
  };
  for (const auto& [key, value] : now.items()) compare(key);
  for (const auto& [key, value] : before.items()) {
    if (!now.contains(key)) compare(key);
  }
  return changed;
}

}  // namespace hone
