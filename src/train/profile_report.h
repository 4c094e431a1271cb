// What a profiler saw, for people: counters of each stage of a step, and a time line for a trace viewer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/profiler.h"

namespace hone {

/// attention, experts (with their router), dense, head, optimizer, or memory-bound.
std::string_view profile_group(std::string_view op);

/// Counters of one step, on average.
struct ProfileStage {
  std::string name = {};   ///< a group's, or "moe_gate_up backward"
  std::string group = {};  ///< that an op belongs to; of a group: ""
  double calls = 0, seconds = 0;
  double bytes = 0;           ///< ProfileSpan::bytes; 0 where no call knows them
  double thread_seconds = 0;  ///< that threads spent in loops, added up
};

struct ProfileSummary {
  int64_t steps = 0;
  double step_seconds = 0;           ///< on average
  double tokens = 0;                 ///< of a step, on average
  int threads = 0;                   ///< of the pool; 0 on a GPU
  std::vector<ProfileStage> groups;  ///< largest first, then "idle": what no op accounts for
  std::vector<ProfileStage> ops;     ///< largest first
};

/// Of the ops within steps. `tokens`: of all steps together.
ProfileSummary summarise_profile(const Profile& profile, double tokens);

/// Each group and its ops: calls, milliseconds, µs for each token, MB, how busy the threads were, shares.
std::string profile_table(const ProfileSummary& summary, bool color);

/// {"steps", "step_ms", "tokens", "threads", "groups": [{"name", "calls", "ms", "us_per_token", "mb", "threads_busy",
/// "share"}], "ops": [the same and "group", "share_of_group"]}; what is unknown is left out
Json profile_json(const ProfileSummary& summary);

/// The Trace Event Format that chrome://tracing and Perfetto read: lanes for steps, blocks and ops and, on a CPU, for
/// each thread: a span for each loop, called as the op it belongs to.
Json chrome_trace(const Profile& profile);

}  // namespace hone
