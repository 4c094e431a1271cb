#include "train/report/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/text/json.h"
#include "report/humanise.h"
#include "report/table.h"

namespace hone {

std::string op_name(const ProfileSpan& span) {
  const bool has_pass = span.kind == ProfileKind::kOp && !span.pass.empty();
  return has_pass ? fmt::format("{} {}", span.name, span.pass) : std::string(span.name);
}

namespace {

double length_of(const ProfileSpan& span) { return span.end - span.begin; }

/// For each op span, the seconds that threads spent in its loops.
std::vector<double> thread_seconds_of(const Profile& profile) {
  std::vector<double> seconds(profile.spans.size(), 0.0);
  int thread = -1;
  double covered = 0;  // end of the counted time of this thread: a loop may be nested in a task
  for (const ThreadSpan& loop : profile.loops) {
    if (loop.thread != thread) covered = 0;
    thread = loop.thread;
    if (loop.op >= 0) seconds[static_cast<size_t>(loop.op)] += std::max(loop.end - std::max(loop.begin, covered), 0.0);
    covered = std::max(covered, loop.end);
  }
  return seconds;
}

/// Ordered, disjoint intervals of time.
class Stretches {
 public:
  /// Appends the part of [begin, end) after the last interval.
  void add(double begin, double end) {
    if (!list_.empty()) begin = std::max(begin, list_.back().second);
    if (begin < end) list_.emplace_back(begin, end);
  }
  /// Length of the intersection with [begin, end).
  double within(double begin, double end) const {
    double sum = 0;
    auto it = std::upper_bound(list_.begin(), list_.end(), begin,
                               [](double time, const auto& stretch) { return time < stretch.second; });
    for (; it != list_.end() && it->first < end; ++it) sum += std::min(it->second, end) - std::max(it->first, begin);
    return sum;
  }

 private:
  std::vector<std::pair<double, double>> list_;
};

/// Intervals of a profile's steps, and of their ops without waits for collectives.
struct StepTimes {
  explicit StepTimes(const Profile& profile) {
    double end_of_step = -1, from = 0, to = 0;  // [from, to): the remainder of an op
    for (const ProfileSpan& span : profile.spans) {
      if (span.kind == ProfileKind::kStep) {
        steps.add(span.begin, span.end);
        end_of_step = span.end;
      }
      const bool in_stream = span.kind == ProfileKind::kCollective && profile.threads > 0;
      if (span.kind == ProfileKind::kWait || in_stream) {
        busy.add(from, std::min(to, span.begin));
        from = std::max(from, span.end);
      }
      if (span.kind != ProfileKind::kOp || span.end > end_of_step) continue;
      busy.add(from, to);
      from = span.begin;
      to = span.end;
    }
    busy.add(from, to);
  }
  double exposed(const ProfileSpan& span) const {
    return std::max(steps.within(span.begin, span.end) - busy.within(span.begin, span.end), 0.0);
  }

  Stretches steps, busy;
};

/// Stages per step on average, largest first.
std::vector<ProfileStage> stages_of(const std::map<std::string, ProfileStage>& sums, int64_t steps) {
  const auto count = static_cast<double>(steps);
  std::vector<ProfileStage> stages;
  for (const auto& [name, sum] : sums) {
    ProfileStage& stage = stages.emplace_back(sum);
    stage.name = name;
    for (double* value : {&stage.calls, &stage.seconds, &stage.bytes, &stage.thread_seconds}) *value /= count;
  }
  std::stable_sort(stages.begin(), stages.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return stages;
}

/// Share of its threads' time that a stage spent in loops.
double busy_share(const ProfileStage& stage, int threads) {
  return stage.seconds > 0 ? stage.thread_seconds / (stage.seconds * threads) : 0.0;
}

/// Seconds of a call.
double mean_of(const ProfileStage& stage) { return stage.seconds / stage.calls; }

Json json_of(const ProfileStage& stage, const ProfileSummary& summary) {
  Json json = {{"name", stage.name},
               {"calls", stage.calls},
               {"ms", stage.seconds * 1e3},
               {"share", stage.seconds / summary.step_seconds}};
  if (stage.calls > 0) {
    json["call_ms"] = {{"least", stage.least * 1e3}, {"mean", mean_of(stage) * 1e3}, {"most", stage.most * 1e3}};
  }
  if (summary.tokens > 0) json["us_per_token"] = stage.seconds * 1e6 / summary.tokens;
  if (stage.bytes > 0) json["mb"] = stage.bytes / 1e6;
  if (summary.threads > 0) json["threads_busy"] = busy_share(stage, summary.threads);
  return json;
}

/// 0 if the group takes no time: hidden collectives.
double share_of_group(const ProfileStage& op, const ProfileSummary& summary) {
  const auto group = std::find_if(summary.groups.begin(), summary.groups.end(),
                                  [&](const ProfileStage& stage) { return stage.name == op.group; });
  return group->seconds > 0 ? op.seconds / group->seconds : 0.0;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace

void ProfileTotals::add(const Profile& profile, double tokens) {
  const std::vector<double> thread_seconds = thread_seconds_of(profile);
  const StepTimes times(profile);
  double end_of_step = -1;
  for (size_t i = 0; i < profile.spans.size(); ++i) {
    const ProfileSpan& span = profile.spans[i];
    if (span.kind == ProfileKind::kStep) {
      ++steps_;
      step_seconds_ += length_of(span);
      end_of_step = span.end;
    }
    const bool collective = span.kind == ProfileKind::kCollective;  // it may end during the next step
    if (!collective && span.kind != ProfileKind::kOp) continue;
    if ((collective ? span.begin : span.end) > end_of_step) continue;
    const double seconds = collective ? times.exposed(span) : times.busy.within(span.begin, span.end);
    if (collective) {
      collective_seconds_ += length_of(span);
      exposed_seconds_ += seconds;
    }
    const std::string group(name_of(span.group));
    ops_[op_name(span)].group = group;
    for (ProfileStage* stage : {&groups_[group], &ops_[op_name(span)]}) {
      stage->least = stage->calls == 0 ? seconds : std::min(stage->least, seconds);
      stage->most = std::max(stage->most, seconds);
      stage->calls += 1;
      stage->seconds += seconds;
      stage->bytes += span.bytes;
      stage->thread_seconds += thread_seconds[i];
    }
    accounted_seconds_ += seconds;
  }
  tokens_ += tokens;
  threads_ = profile.threads;
}

ProfileSummary ProfileTotals::summary() const {
  ProfileSummary summary;
  summary.steps = steps_;
  if (steps_ == 0) return summary;
  const auto steps = static_cast<double>(steps_);
  summary.step_seconds = step_seconds_ / steps;
  summary.tokens = tokens_ / steps;
  summary.threads = threads_;
  summary.groups = stages_of(groups_, steps_);
  summary.groups.push_back({.name = "idle", .seconds = std::max(step_seconds_ - accounted_seconds_, 0.0) / steps});
  summary.collective_seconds = collective_seconds_ / steps;
  summary.exposed_seconds = exposed_seconds_ / steps;
  summary.ops = stages_of(ops_, steps_);
  return summary;
}

ProfileSummary summarise_profile(const Profile& profile, double tokens) {
  ProfileTotals totals;
  totals.add(profile, tokens);
  return totals.summary();
}

std::string profile_table(const ProfileSummary& summary, bool color) {
  const bool cpu = summary.threads > 0;
  std::vector<Table::Column> columns = {{"stage of a step"}};
  for (const char* name :
       {"calls", "ms", "a call: least, mean, most", "µs a token", "MB", "of a step", "of its group", "threads busy"}) {
    columns.push_back({name, Align::kRight});
  }
  if (!cpu) columns.pop_back();
  Table table(columns);
  const auto add = [&](const ProfileStage& stage, const std::string& name, const std::string& share_of_group) {
    std::vector<std::string> cells = {
        name,
        stage.calls > 0 ? fmt::format("{:.0f}", stage.calls) : "",
        fmt::format("{:.2f}", 1e3 * stage.seconds),
        !stage.group.empty()
            ? fmt::format("{:.3f}  {:.3f}  {:.3f}", 1e3 * stage.least, 1e3 * mean_of(stage), 1e3 * stage.most)
            : "",
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
      if (op.group == group.name) add(op, "  " + op.name, percent(share_of_group(op, summary)));
    }
  }
  std::string text = table.to_string(color);
  text += "  MB: values and gradients that the ops read and write, without weights\n";
  if (summary.collective_seconds == 0) return text;
  return text + fmt::format("  collectives: {:.2f} ms a step, {} of them hidden by ops; the table counts the rest\n",
                            1e3 * summary.collective_seconds, percent(summary.hidden_share()));
}

Json profile_json(const ProfileSummary& summary) {
  Json groups = Json::array(), ops = Json::array();
  for (const ProfileStage& group : summary.groups) groups.push_back(json_of(group, summary));
  for (const ProfileStage& op : summary.ops) {
    Json json = json_of(op, summary);
    json["group"] = op.group;
    json["share_of_group"] = share_of_group(op, summary);
    ops.push_back(std::move(json));
  }
  Json json = {{"steps", summary.steps},     {"step_ms", summary.step_seconds * 1e3}, {"tokens", summary.tokens},
               {"threads", summary.threads}, {"groups", std::move(groups)},           {"ops", std::move(ops)}};
  if (summary.collective_seconds > 0) {
    json["collectives"] = {{"ms", summary.collective_seconds * 1e3},
                           {"exposed_ms", summary.exposed_seconds * 1e3},
                           {"hidden_share", summary.hidden_share()}};
  }
  return json;
}

}  // namespace hone
