#include <algorithm>
#include <chrono>
#include <optional>

#include "core/stream/profiler.h"
#include "core/text/json.h"
#include "train/report/profile_report.h"
#include "train/report/trace_file.h"
#include "train/run/run_observer.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

/// The first steps are slower: libraries choose algorithms, and memory is touched for the first time.
constexpr int64_t kWarmUp = 3;

/// The time line and the counters of one stream's steps, in FOLDER/NAME.json and FOLDER/NAME-stages.json.
class StreamProfile {
 public:
  StreamProfile(Stream& stream, const std::filesystem::path& folder, const std::string& name)
      : time_line_(folder / (name + ".json")),
        stages_(folder / (name + "-stages.json")),
        trace_(std::in_place, time_line_),
        profiler_(std::in_place, stream) {}

  /// Adds what has been recorded since the last call; `tokens` of these steps.
  void add(double tokens) {
    const Profile profile = profiler_->take();
    totals_.add(profile, tokens);
    if (!begin_) begin_ = profile.start;
    trace_->add(profile, std::chrono::duration<double>(profile.start - *begin_).count());
  }

  void finish(Logger& logger) {
    profiler_.reset();
    trace_.reset();
    const ProfileSummary summary = totals_.summary();
    write_text_file(stages_, profile_json(summary).dump(2) + "\n");
    logger.block(profile_table(summary, logger.console().color()));
    logger.info(
        "these counters as JSON: {}; time line of {} steps: {} (open it in chrome://tracing or ui.perfetto.dev)",
        stages_.string(), summary.steps, time_line_.string());
  }

 private:
  std::filesystem::path time_line_, stages_;
  std::optional<std::chrono::steady_clock::time_point> begin_;  // when the first profile began
  ProfileTotals totals_;
  std::optional<TraceFile> trace_;
  std::optional<Profiler> profiler_;
};

/// Profiles some of the remaining steps: a number of them after the first three, or the last ones of a short run; 0:
/// all. The time lines are written step by step: that of the device, and that of experts on the CPU beside it.
class RunProfile : public RunObserver {
 public:
  RunProfile(const LoadedRun& run, int64_t steps, int64_t profiled)
      : run_(run),
        first_(profiled == 0 ? 0 : std::clamp<int64_t>(steps - profiled, 0, kWarmUp)),
        last_((profiled == 0 ? steps : std::min(first_ + profiled, steps)) - 1) {}

  void step_begins() override {
    if (step_ != first_ || step_ > last_) return;
    const std::filesystem::path folder = run_.config().report.output_dir;
    device_.emplace(run_.context().stream, folder, "profile");
    if (Stream* host = run_.engine().host_stream()) host_.emplace(*host, folder, "profile-host");
  }

  void step_computed(const StepDone& step) override {
    for (std::optional<StreamProfile>* profile : {&device_, &host_}) {
      if (*profile) (*profile)->add(static_cast<double>(step.result.loss.tokens));
    }
    if (step_++ == last_) finish();
  }

  /// Also called in a run that ends before its last profiled step.
  void loop_left() override { finish(); }

 private:
  void finish() {
    for (std::optional<StreamProfile>* profile : {&device_, &host_}) {
      if (*profile) (*profile)->finish(run_.context().logger);
      profile->reset();
    }
  }

  const LoadedRun& run_;
  int64_t first_, last_;  // profiled steps, counted from 0
  int64_t step_ = 0;
  std::optional<StreamProfile> device_, host_;  // while steps are profiled
};

}  // namespace

std::unique_ptr<RunObserver> run_profile(const LoadedRun& run) {
  const RunConfig::Machine& machine = run.config().machine;
  if (!machine.profile || !run.context().writes()) return nullptr;
  return std::make_unique<RunProfile>(run, run.schedule().total_steps - run.state.step, machine.profile_steps);
}

}  // namespace hone
