// What a profiler saw, for people: time by group of ops, and a time line for a trace viewer.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/profiler.h"

namespace hone {

/// attention, experts (with their router), dense, head, optimizer, or memory-bound.
std::string_view profile_group(std::string_view op);

struct ProfileRow {
  std::string name;
  double calls = 0, seconds = 0;  ///< of one step, on average
};

struct ProfileSummary {
  int64_t steps = 0;
  double step_seconds = 0;         ///< on average
  std::vector<ProfileRow> groups;  ///< largest first, then "idle": what no op accounts for
  std::vector<ProfileRow> ops;     ///< "moe_gate_up backward", largest first
};

/// Of the ops within steps.
ProfileSummary summarise_profile(std::span<const ProfileSpan> spans);

/// Groups, then ops, with milliseconds and shares of a step.
std::string profile_table(const ProfileSummary& summary, bool color);

/// {"steps": …, "step_ms": …, "groups": [{"name", "calls", "ms"}], "ops": […]}
Json profile_json(const ProfileSummary& summary);

/// The Trace Event Format that chrome://tracing and Perfetto read: lines for steps, blocks and ops.
Json chrome_trace(std::span<const ProfileSpan> spans);

}  // namespace hone
