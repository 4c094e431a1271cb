#include "train/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "report/table.h"

namespace hone {

std::string_view profile_group(std::string_view op) {
  const auto is_one_of = [op](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), op) != names.end();
  };
  if (is_one_of({"attention", "cached_attention", "gated_delta_rule"})) return "attention";
  if (op.starts_with("moe_") || op == "router" || op == "load_balancing") return "experts";
  if (op == "linear" || op == "lora_down") return "dense";
  if (op == "linear_cross_entropy") return "head";
  if (is_one_of({"adamw", "adafactor", "lion", "sgd", "grad_norm"})) return "optimizer";
  return "memory-bound";
}

namespace {

std::string op_name(const ProfileSpan& span) {
  return span.pass.empty() ? std::string(span.name) : fmt::format("{} {}", span.name, span.pass);
}

double length_of(const ProfileSpan& span) { return span.end - span.begin; }

/// Of each op's span, the seconds that threads spent in its loops.
std::vector<double> thread_seconds_of(const Profile& profile) {
  std::vector<double> seconds(profile.spans.size(), 0.0);
  int thread = -1;
  double covered = 0;  // until when this thread's time has been counted: a loop may lie within a task
  for (const ThreadSpan& loop : profile.loops) {
    if (loop.thread != thread) covered = 0;
    thread = loop.thread;
    if (loop.op >= 0) seconds[static_cast<size_t>(loop.op)] += std::max(loop.end - std::max(loop.begin, covered), 0.0);
    covered = std::max(covered, loop.end);
  }
  return seconds;
}

/// Stages of one step on average, largest first.
std::vector<ProfileStage> stages_of(const std::map<std::string, ProfileStage>& sums, int64_t steps) {
  const auto count = static_cast<double>(steps);
  std::vector<ProfileStage> stages;
  for (const auto& [name, sum] : sums) {
    stages.push_back(
        {name, sum.group, sum.calls / count, sum.seconds / count, sum.bytes / count, sum.thread_seconds / count});
  }
  std::stable_sort(stages.begin(), stages.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return stages;
}

/// The share of its threads' time that a stage spent in loops.
double busy_share(const ProfileStage& stage, int threads) {
  return stage.seconds > 0 ? stage.thread_seconds / (stage.seconds * threads) : 0.0;
}

Json json_of(const ProfileStage& stage, const ProfileSummary& summary) {
  Json json = {{"name", stage.name},
               {"calls", stage.calls},
               {"ms", stage.seconds * 1e3},
               {"share", stage.seconds / summary.step_seconds}};
  if (summary.tokens > 0) json["us_per_token"] = stage.seconds * 1e6 / summary.tokens;
  if (stage.bytes > 0) json["mb"] = stage.bytes / 1e6;
  if (summary.threads > 0) json["threads_busy"] = busy_share(stage, summary.threads);
  return json;
}

double seconds_of_group(const ProfileSummary& summary, const std::string& name) {
  const auto found =
      std::find_if(summary.groups.begin(), summary.groups.end(), [&](const auto& group) { return group.name == name; });
  return found->seconds;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace

ProfileSummary summarise_profile(const Profile& profile, double tokens) {
  ProfileSummary summary;
  const std::vector<double> thread_seconds = thread_seconds_of(profile);
  std::map<std::string, ProfileStage> groups, ops;
  double total = 0, busy = 0, end_of_step = -1;
  for (size_t i = 0; i < profile.spans.size(); ++i) {
    const ProfileSpan& span = profile.spans[i];
    if (span.kind == ProfileKind::kStep) {
      ++summary.steps;
      total += length_of(span);
      end_of_step = span.end;
    }
    if (span.kind != ProfileKind::kOp || span.end > end_of_step) continue;
    const std::string group(profile_group(span.name));
    ops[op_name(span)].group = group;
    for (ProfileStage* stage : {&groups[group], &ops[op_name(span)]}) {
      stage->calls += 1;
      stage->seconds += length_of(span);
      stage->bytes += span.bytes;
      stage->thread_seconds += thread_seconds[i];
    }
    busy += length_of(span);
  }
  if (summary.steps == 0) return summary;
  const auto steps = static_cast<double>(summary.steps);
  summary.step_seconds = total / steps;
  summary.tokens = tokens / steps;
  summary.threads = profile.threads;
  summary.groups = stages_of(groups, summary.steps);
  summary.groups.push_back({.name = "idle", .seconds = std::max(total - busy, 0.0) / steps});
  summary.ops = stages_of(ops, summary.steps);
  return summary;
}

std::string profile_table(const ProfileSummary& summary, bool color) {
  const bool cpu = summary.threads > 0;
  std::vector<Table::Column> columns = {{"stage of a step"}};
  for (const char* name : {"calls", "ms", "µs a token", "MB", "of a step", "of its group", "threads busy"}) {
    columns.push_back({name, Align::kRight});
  }
  if (!cpu) columns.pop_back();
  Table table(columns);
  const auto add = [&](const ProfileStage& stage, const std::string& name, const std::string& share_of_group) {
    std::vector<std::string> cells = {
        name,
        stage.calls > 0 ? fmt::format("{:.0f}", stage.calls) : "",
        fmt::format("{:.2f}", 1e3 * stage.seconds),
        summary.tokens > 0 ? fmt::format("{:.2f}", 1e6 * stage.seconds / summary.tokens) : "",
        stage.bytes > 0 ? fmt::format("{:.0f}", stage.bytes / 1e6) : "",
        percent(stage.seconds / summary.step_seconds),
        share_of_group};
    if (cpu) cells.push_back(stage.calls > 0 ? percent(busy_share(stage, summary.threads)) : "");
    table.add_row(std::move(cells));
  };
  for (const ProfileStage& group : summary.groups) {
    add(group, group.name, "");
    for (const ProfileStage& op : summary.ops) {
      if (op.group == group.name) add(op, "  " + op.name, percent(op.seconds / group.seconds));
    }
  }
  return table.to_string(color) + "  MB: values and gradients that the ops read and write; weights are not counted\n";
}

Json profile_json(const ProfileSummary& summary) {
  Json groups = Json::array(), ops = Json::array();
  for (const ProfileStage& group : summary.groups) groups.push_back(json_of(group, summary));
  for (const ProfileStage& op : summary.ops) {
    Json json = json_of(op, summary);
    json["group"] = op.group;
    json["share_of_group"] = op.seconds / seconds_of_group(summary, op.group);
    ops.push_back(std::move(json));
  }
  return {{"steps", summary.steps},     {"step_ms", summary.step_seconds * 1e3}, {"tokens", summary.tokens},
          {"threads", summary.threads}, {"groups", std::move(groups)},           {"ops", std::move(ops)}};
}

namespace {

/// Lanes of a trace in their order from above; threads come last.
constexpr const char* kLanes[] = {"steps", "blocks", "ops"};
constexpr int kFirstThread = 3;

void name_lane(Json& events, int lane, const std::string& name) {
  events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", lane}, {"args", {{"name", name}}}});
  events.push_back(
      {{"name", "thread_sort_index"}, {"ph", "M"}, {"pid", 0}, {"tid", lane}, {"args", {{"sort_index", lane}}}});
}

Json stretch(const std::string& name, const std::string& category, int lane, double begin, double end) {
  return {{"name", name}, {"cat", category}, {"ph", "X"}, {"ts", begin * 1e6}, {"dur", (end - begin) * 1e6},
          {"pid", 0},     {"tid", lane}};
}

}  // namespace

Json chrome_trace(const Profile& profile) {
  Json events = Json::array();
  for (int lane = 0; lane < kFirstThread; ++lane) name_lane(events, lane, kLanes[lane]);
  for (int thread = 0; thread < profile.threads; ++thread) {
    name_lane(events, kFirstThread + thread, fmt::format("thread {}", thread));
  }
  for (const ProfileSpan& span : profile.spans) {
    const bool numbered = span.kind != ProfileKind::kOp;
    Json event = stretch(numbered ? fmt::format("{} {}", span.name, span.index) : std::string(span.name),
                         std::string(numbered ? span.name : profile_group(span.name)), static_cast<int>(span.kind),
                         span.begin, span.end);
    if (!span.pass.empty()) event["args"]["pass"] = span.pass;
    if (span.bytes > 0) event["args"]["mb"] = span.bytes / 1e6;
    events.push_back(std::move(event));
  }
  for (const ThreadSpan& loop : profile.loops) {
    const ProfileSpan* op = loop.op >= 0 ? &profile.spans[static_cast<size_t>(loop.op)] : nullptr;
    Json event =
        stretch(op != nullptr ? op_name(*op) : "loop", std::string(op != nullptr ? profile_group(op->name) : "loop"),
                kFirstThread + loop.thread, loop.begin, loop.end);
    event["args"] = {{"tasks", loop.tasks}};
    events.push_back(std::move(event));
  }
  Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  if (profile.unrecorded_loops > 0) trace["otherData"] = {{"unrecorded_loops", profile.unrecorded_loops}};
  return trace;
}

}  // namespace hone
