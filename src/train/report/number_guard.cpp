#include <fmt/format.h>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/dataset/repeats.h"
#include "report/humanise.h"
#include "train/run/run_observer.h"

namespace hone {

namespace {

/// With nan_policy: skip, the run ends after this many consecutive skipped steps.
constexpr int64_t kMostSkippedSteps = 10;

class NumberGuard : public RunObserver {
 public:
  explicit NumberGuard(const LoadedRun& run) : run_(run) {}

  void step_computed(const StepDone& step) override {
    const StepResult& result = step.result;
    if (!result.nonfinite) {
      skipped_in_a_row_ = 0;
      return;
    }
    const RunConfig& config = run_.config();
    const int64_t number = run_.state.step + 1;
    const std::filesystem::path dump =
        std::filesystem::path(config.report.output_dir) / fmt::format("nonfinite-step-{}.json", number);
    if (run_.context().writes()) write_text_file(dump, description(step, number).dump(2) + "\n");
    const std::string what =
        fmt::format("step {}: loss {} and gradient norm {} are not finite numbers{}", number,
                    exact_number(result.loss.loss), exact_number(result.grad_norm),
                    result.first_nonfinite.empty() ? "" : "; the first bad gradient is of " + result.first_nonfinite);
    if (config.optim.nan_policy == NanPolicy::kSkip && ++skipped_in_a_row_ < kMostSkippedSteps) {
      run_.logger().warning("{}: the step is skipped; its samples are in {}", what, dump.string());
      return;
    }
    throw Error(
        ExitCode::kNumbersLost, what, dump.string(),
        config.optim.optimizer_in_backward
            ? "later layers may have been updated; resume from the last checkpoint. Look at the samples listed in "
              "that file, or lower the learning rate"
            : "the parameters were not changed; look at the samples listed in that file, lower the learning rate, "
              "or set nan_policy: skip");
  }

 private:
  /// The numbers of a step, and its samples.
  Json description(const StepDone& step, int64_t number) const {
    const DescribedRun& described = run_.described();
    const TrainingData& data = described.data();
    Json samples = Json::array(), places = Json::array();
    for (const MicroBatch& batch : step.data.micro_batches) {
      for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
        if (batch.cu_seqlens[i] == batch.cu_seqlens[i + 1]) continue;
        const int64_t id = batch.sample_ids[static_cast<size_t>(batch.cu_seqlens[i])];
        samples.push_back(id);
        places.push_back(where_of(data.train[described.loader->position_of(id)], data.train_reports));
      }
    }
    return {{"step", number},
            {"loss", exact_number(step.result.loss.loss)},
            {"grad_norm", exact_number(step.result.grad_norm)},
            {"first_nonfinite_gradient", step.result.first_nonfinite},
            {"sample_ids", samples},
            {"samples", places}};
  }

  const LoadedRun& run_;
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace

std::unique_ptr<RunObserver> number_guard(const LoadedRun& run) { return std::make_unique<NumberGuard>(run); }

}  // namespace hone
