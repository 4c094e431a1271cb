#include <algorithm>
#include <chrono>
#include <optional>

#include "core/json.h"
#include "core/profiler.h"
#include "train/profile_report.h"
#include "train/run_observer.h"
#include "train/trace_file.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

/// The first steps are slower: libraries choose algorithms, and memory is touched for the first time.
constexpr int64_t kWarmUp = 3;

/// Profiles some of the remaining steps: a number of them after the first three, or the last ones of a short run; 0:
/// all. The time line is written step by step.
class RunProfile : public RunObserver {
 public:
  RunProfile(const LoadedRun& run, int64_t steps, int64_t profiled)
      : context_(run.context()),
        folder_(run.config().report.output_dir),
        first_(profiled == 0 ? 0 : std::clamp<int64_t>(steps - profiled, 0, kWarmUp)),
        last_((profiled == 0 ? steps : std::min(first_ + profiled, steps)) - 1) {}

  void step_begins() override {
    if (step_ != first_ || step_ > last_) return;
    trace_.emplace(folder_ / "profile.json");
    profiler_.emplace(context_.stream);
  }

  void step_computed(const StepDone& step) override {
    if (profiler_) {
      const Profile profile = profiler_->take();
      totals_.add(profile, static_cast<double>(step.result.loss.tokens));
      if (!begin_) begin_ = profile.start;
      trace_->add(profile, std::chrono::duration<double>(profile.start - *begin_).count());
    }
    if (step_++ == last_) finish();
  }

  /// Also called in a run that ends before its last profiled step.
  void loop_left() override { finish(); }

 private:
  void finish() {
    if (!profiler_) return;
    profiler_.reset();
    trace_.reset();
    const ProfileSummary summary = totals_.summary();
    const std::filesystem::path time_line = folder_ / "profile.json", stages = folder_ / "profile-stages.json";
    write_text_file(stages, profile_json(summary).dump(2) + "\n");
    Logger& logger = context_.logger;
    logger.block(profile_table(summary, logger.console().color()));
    logger.info(
        "these counters as JSON: {}; time line of {} steps: {} (open it in chrome://tracing or ui.perfetto.dev)",
        stages.string(), summary.steps, time_line.string());
  }

  RunContext& context_;
  std::filesystem::path folder_;
  int64_t first_, last_;  // profiled steps, counted from 0
  int64_t step_ = 0;
  std::optional<std::chrono::steady_clock::time_point> begin_;  // of the first profile
  ProfileTotals totals_;
  std::optional<Profiler> profiler_;  // while steps are profiled
  std::optional<TraceFile> trace_;
};

}  // namespace

std::unique_ptr<RunObserver> run_profile(const LoadedRun& run) {
  const RunConfig::Machine& machine = run.config().machine;
  if (!machine.profile || !run.context().writes()) return nullptr;
  return std::make_unique<RunProfile>(run, run.schedule().total_steps - run.state.step, machine.profile_steps);
}

}  // namespace hone
