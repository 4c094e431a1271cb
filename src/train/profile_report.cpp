#include "train/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/table.h"

namespace hone {

std::string_view profile_group(std::string_view op) {
  if (op == "attention" || op == "cached_attention") return "attention";
  if (op.starts_with("moe_") || op == "router" || op == "load_balancing") return "experts";
  if (op == "linear" || op == "lora_down") return "dense";
  if (op == "linear_cross_entropy") return "head";
  if (op == "adamw" || op == "grad_norm") return "optimizer";
  return "memory-bound";
}

namespace {

std::string op_name(const ProfileSpan& span) {
  return span.pass.empty() ? std::string(span.name) : fmt::format("{} {}", span.name, span.pass);
}

double length_of(const ProfileSpan& span) { return span.end - span.begin; }

/// Rows of one step on average, largest first.
std::vector<ProfileRow> rows_of(const std::map<std::string, ProfileRow>& sums, int64_t steps) {
  std::vector<ProfileRow> rows;
  for (const auto& [name, sum] : sums) {
    rows.push_back({name, sum.calls / static_cast<double>(steps), sum.seconds / static_cast<double>(steps)});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return rows;
}

Json json_of(const std::vector<ProfileRow>& rows) {
  Json list = Json::array();
  for (const ProfileRow& row : rows)
    list.push_back({{"name", row.name}, {"calls", row.calls}, {"ms", row.seconds * 1e3}});
  return list;
}

}  // namespace

ProfileSummary summarise_profile(std::span<const ProfileSpan> spans) {
  ProfileSummary summary;
  std::map<std::string, ProfileRow> groups, ops;
  double total = 0, busy = 0, end_of_step = -1;
  for (const ProfileSpan& span : spans) {
    if (span.kind == ProfileKind::kStep) {
      ++summary.steps;
      total += length_of(span);
      end_of_step = span.end;
    }
    if (span.kind != ProfileKind::kOp || span.end > end_of_step) continue;
    for (ProfileRow* row : {&groups[std::string(profile_group(span.name))], &ops[op_name(span)]}) {
      row->calls += 1;
      row->seconds += length_of(span);
    }
    busy += length_of(span);
  }
  if (summary.steps == 0) return summary;
  summary.step_seconds = total / static_cast<double>(summary.steps);
  summary.groups = rows_of(groups, summary.steps);
  summary.groups.push_back({"idle", 0, std::max(total - busy, 0.0) / static_cast<double>(summary.steps)});
  summary.ops = rows_of(ops, summary.steps);
  return summary;
}

std::string profile_table(const ProfileSummary& summary, bool color) {
  Table table({{"of a step"}, {"calls", Align::kRight}, {"ms", Align::kRight}, {"share", Align::kRight}});
  const auto add = [&](const ProfileRow& row) {
    table.add_row({row.name, row.calls > 0 ? fmt::format("{:.0f}", row.calls) : "",
                   fmt::format("{:.2f}", 1e3 * row.seconds),
                   fmt::format("{:.1f} %", 100 * row.seconds / summary.step_seconds)});
  };
  for (const ProfileRow& row : summary.groups) add(row);
  table.add_rule();
  for (const ProfileRow& row : summary.ops) add(row);
  return table.to_string(color);
}

Json profile_json(const ProfileSummary& summary) {
  return {{"steps", summary.steps},
          {"step_ms", summary.step_seconds * 1e3},
          {"groups", json_of(summary.groups)},
          {"ops", json_of(summary.ops)}};
}

Json chrome_trace(std::span<const ProfileSpan> spans) {
  Json events = Json::array();
  const char* const lines[] = {"steps", "blocks", "ops"};
  for (int line = 0; line < 3; ++line) {
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", line}, {"args", {{"name", lines[line]}}}});
  }
  for (const ProfileSpan& span : spans) {
    const bool numbered = span.kind != ProfileKind::kOp;
    Json event = {{"name", numbered ? fmt::format("{} {}", span.name, span.index) : std::string(span.name)},
                  {"cat", numbered ? std::string(span.name) : std::string(profile_group(span.name))},
                  {"ph", "X"},
                  {"ts", span.begin * 1e6},
                  {"dur", length_of(span) * 1e6},
                  {"pid", 0},
                  {"tid", static_cast<int>(span.kind)}};
    if (!span.pass.empty()) event["args"] = {{"pass", std::string(span.pass)}};
    events.push_back(std::move(event));
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace hone
