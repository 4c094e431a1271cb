// Counters of each stage of a step, from what a profiler recorded.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "core/profiler.h"

namespace hone {

/// "moe_gate_up backward": a stage of the report, and what a thread's span is called.
std::string op_name(const ProfileSpan& span);

/// Counters of one step, on average.
struct ProfileStage {
  std::string name = {};   ///< a group's, or "moe_gate_up backward"
  std::string group = {};  ///< that an op or a collective belongs to; of a group: ""
  double calls = 0;
  double seconds = 0;         ///< of collectives: those in which no op runs beside them
  double bytes = 0;           ///< ProfileSpan::bytes; 0 where no call knows them
  double thread_seconds = 0;  ///< that threads spent in loops, added up
};

struct ProfileSummary {
  int64_t steps = 0;
  double step_seconds = 0;           ///< on average
  double tokens = 0;                 ///< of a step, on average
  int threads = 0;                   ///< of the pool; 0 on a GPU
  std::vector<ProfileStage> groups;  ///< largest first, then "idle": what neither ops nor collectives account for
  std::vector<ProfileStage> ops;     ///< largest first
  double collective_seconds = 0;     ///< of collectives, whatever runs beside them
  double exposed_seconds = 0;        ///< of these, those in which no op runs

  /// The share of the collectives' time in which ops run beside them; 1 without collectives.
  double hidden_share() const { return collective_seconds > 0 ? 1 - exposed_seconds / collective_seconds : 1; }
};

/// Sums over the profiles of a run's steps.
class ProfileTotals {
 public:
  /// Counts the ops within steps, without their waits for collectives, and the collectives that begin in steps.
  /// `tokens`: of all steps of `profile` together.
  void add(const Profile& profile, double tokens);
  ProfileSummary summary() const;

 private:
  int64_t steps_ = 0;
  int threads_ = 0;
  double tokens_ = 0, step_seconds_ = 0, accounted_seconds_ = 0, collective_seconds_ = 0, exposed_seconds_ = 0;
  std::map<std::string, ProfileStage> groups_, ops_;
};

/// The totals of one profile.
ProfileSummary summarise_profile(const Profile& profile, double tokens);

/// Each group and its ops: calls, milliseconds, µs for each token, MB, how busy the threads were, shares.
std::string profile_table(const ProfileSummary& summary, bool color);

/// {"steps", "step_ms", "tokens", "threads", "groups": [{"name", "calls", "ms", "us_per_token", "mb", "threads_busy",
/// "share"}], "ops": [the same and "group", "share_of_group"], "collectives": {"ms", "exposed_ms", "hidden_share"}};
/// what is unknown is left out
Json profile_json(const ProfileSummary& summary);

}  // namespace hone
