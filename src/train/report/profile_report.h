// Counters for each stage of a step, from a recorded profile.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/stream/profiler.h"
#include "core/text/json_fwd.h"

namespace hone {

/// "moe_gate_up backward": name of an op's stage in the report, and of its spans in thread lanes.
std::string op_name(const ProfileSpan& span);

/// Counters of a stage per step, on average.
struct ProfileStage {
  std::string name = {};   ///< the name of a group, or of an op: "moe_gate_up backward"
  std::string group = {};  ///< group of an op or collective; "" for a group
  double calls = 0;
  double seconds = 0;          ///< for collectives: exposed time only
  double least = 0, most = 0;  ///< seconds of a call
  double bytes = 0;            ///< ProfileSpan::bytes; 0 if no call reports them
  double thread_seconds = 0;   ///< sum over threads of the time in loops
};

struct ProfileSummary {
  int64_t steps = 0;
  double step_seconds = 0;           ///< on average
  double tokens = 0;                 ///< per step, on average
  int threads = 0;                   ///< in the pool; 0 on a GPU
  std::vector<ProfileStage> groups;  ///< largest first, then "idle": time without ops or collectives
  std::vector<ProfileStage> ops;     ///< largest first
  double collective_seconds = 0;     ///< the time of collectives, overlapped or not
  double exposed_seconds = 0;        ///< the part of these in which no op runs

  /// Share of the collectives' time that overlaps with ops; 1 without collectives.
  double hidden_share() const { return collective_seconds > 0 ? 1 - exposed_seconds / collective_seconds : 1; }
};

/// Sums over the profiles of a run's steps.
class ProfileTotals {
 public:
  /// Adds the ops within steps, without their waits for collectives, and the collectives that begin in steps. `tokens`:
  /// sum over all steps of `profile`.
  void add(const Profile& profile, double tokens);
  ProfileSummary summary() const;

 private:
  int64_t steps_ = 0;
  int threads_ = 0;
  double tokens_ = 0, step_seconds_ = 0, accounted_seconds_ = 0, collective_seconds_ = 0, exposed_seconds_ = 0;
  std::map<std::string, ProfileStage> groups_, ops_;
};

/// Summary of a single profile.
ProfileSummary summarise_profile(const Profile& profile, double tokens);

/// Table of groups and their ops: calls, milliseconds, those of one call, µs per token, MB, share of busy threads,
/// shares of time.
std::string profile_table(const ProfileSummary& summary, bool color);

/// {"steps", "step_ms", "tokens", "threads", "groups": [{"name", "calls", "ms", "call_ms": {"least", "mean", "most"},
/// "us_per_token", "mb", "threads_busy", "share"}], "ops": [the same plus "group", "share_of_group"], "collectives":
/// {"ms", "exposed_ms", "hidden_share"}}; unknown values are omitted.
Json profile_json(const ProfileSummary& summary);

}  // namespace hone
