// The metrics of a step and of an evaluation, with the names that all sinks use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hone {

struct Metric {
  std::string name;
  double value = 0;
  bool is_count = false;  ///< an integer: written without a decimal point
};

/// Speed and remaining time of a run, with the metric names of fine-tuning benchmarks. Times in seconds, MB of 2^20
/// bytes. Averages exclude the first steps of the process, which are slower (see EfficiencyMeter).
struct Efficiency {
  double step_time_sec = 0, avg_step_time_sec = 0;
  double time_to_completion_sec = 0;                                             ///< avg_step_time_sec × steps left
  double estimated_total_time_sec = 0;                                           ///< avg_step_time_sec × all steps
  double step_peak_memory_allocated_MB = 0, total_peak_memory_allocated_MB = 0;  ///< memory of tensors
  /// memory in use as reported by the device
  double step_peak_memory_reserved_MB = 0, total_peak_memory_reserved_MB = 0;
  double step_tokens_per_second = 0, avg_tokens_per_second = 0;
};

/// A metric of one of several data sets or layers.
struct NamedValue {
  std::string name;
  double value = 0;
  double weight = 1;  ///< for the mean over logging_steps; not written

  bool operator==(const NamedValue&) const = default;
};

/// The metrics of one optimizer step. An unset optional was not measured and is not written.
struct StepMetrics {
  int64_t step = 0;                   ///< optimizer steps so far, including this one
  double epoch = 0;                   ///< epochs so far, with fraction
  double loss = 0;                    ///< cross-entropy per supervised token, nats
  double loss_with_aux = 0;           ///< loss plus the routers' losses times their coefficients: the loss of backward
  double grad_norm = 0;               ///< global norm before clipping
  double learning_rate = 0;           ///< used by this step
  int64_t num_tokens = 0;             ///< since the start of the run, over all ranks
  int64_t num_supervised_tokens = 0;  ///< those of num_tokens with loss
  double tokens_per_second = 0;       ///< in this step, over all ranks
  double samples_per_second = 0;      ///< in this step, over all ranks
  double step_time = 0;               ///< seconds
  std::optional<double> mean_token_accuracy = {};  ///< fraction of supervised tokens whose argmax is the target
  std::optional<double> entropy = {};              ///< mean entropy of the next-token distribution, nats
  std::optional<double> mfu = {};                  ///< model FLOP/s as a fraction of the device's peak
  std::optional<double> max_alloc = {};            ///< memory/max_alloc: peak bytes on the device
  std::optional<double> host_rss = {};             ///< memory/host_rss: resident bytes of the process
  std::optional<double> gpu_utilization = {};      ///< gpu/utilization: percent, in the last reading
  std::optional<double> gpu_power = {};            ///< gpu/power: watts
  std::optional<double> gpu_temperature = {};      ///< gpu/temperature: degrees Celsius
  std::optional<double> eta = {};                  ///< seconds to the end of the run; set by Reporter if unset
  std::optional<double> router_aux_loss = {};      ///< load-balancing loss before its coefficient
  std::optional<double> router_z_loss = {};        ///< before its coefficient
  /// largest expert load over the mean, mean over layers; 1 is balanced
  std::optional<double> router_load_max_over_mean = {};
  std::optional<double> router_entropy = {};         ///< mean entropy of the router's distribution, nats
  std::optional<double> router_dead_experts = {};    ///< experts without tokens, over all layers
  std::optional<double> router_dropped_tokens = {};  ///< 0: tokens are never dropped
  std::optional<double> packing_efficiency = {};     ///< data/packing_efficiency: filled fraction of the micro-batches
  std::optional<double> data_wait = {};        ///< data/wait: seconds in which the device waited for micro-batches
  std::optional<double> dropped_samples = {};  ///< data/dropped_samples: since the start of the run
  std::vector<NamedValue> dataset_loss = {};   ///< loss/<data set>, if there are several
  std::vector<NamedValue> router_layers = {};  ///< router/<layer>/…, with moe_log_expert_load

  std::optional<Efficiency> efficiency = {};  ///< set by Reporter

  /// Bytes of all tensors at the peak of the step. Not written separately.
  double allocated = 0;
  /// Supervised tokens of this step: its weight in the mean over logging_steps. Not written.
  int64_t step_supervised_tokens = 0;
};

/// The metrics of one evaluation.
struct EvalMetrics {
  int64_t step = 0;
  double epoch = 0;
  double eval_loss = 0;                                 ///< cross-entropy per supervised token, nats
  double eval_perplexity = 0;                           ///< exp(eval_loss)
  std::optional<double> eval_mean_token_accuracy = {};  ///< fraction of supervised tokens whose argmax is the target

  std::vector<NamedValue> dataset_loss = {};       ///< eval_<data set>_loss, if there are several
  std::optional<double> generation_finished = {};  ///< fraction of the generated answers that the model ended
  std::optional<double> generation_tokens = {};    ///< mean length of the generated answers

  double seconds = 0;    ///< duration: shown, not written
  bool is_best = false;  ///< best so far by metric_for_best_model: shown, not written
};

/// The metrics in the order of writing; step and epoch come first.
std::vector<Metric> metric_list(const StepMetrics& metrics);
std::vector<Metric> metric_list(const EvalMetrics& metrics);

// The efficiency metrics of a run.

/// Averages over the steps of this process after its warm-up. The first kWarmUpSteps steps (also after a resume) have
/// no efficiency metrics and are excluded from averages: caches are cold, memory is untouched and libraries are not
/// loaded.
class EfficiencyMeter {
 public:
  static constexpr int64_t kWarmUpSteps = 2;

  explicit EfficiencyMeter(int64_t total_steps = 0) : total_steps_(total_steps) {}

  /// The metrics after a step with `step`, `step_time`, `num_tokens`, `allocated` and `max_alloc`. Call once per step,
  /// in order.
  std::optional<Efficiency> after(const StepMetrics& step);
  /// Mean step time in seconds after the warm-up; nothing before.
  std::optional<double> average_step() const {
    return timed_ > 0 ? std::optional(seconds_ / static_cast<double>(timed_)) : std::nullopt;
  }

 private:
  int64_t total_steps_;
  int64_t seen_ = 0, timed_ = 0;
  int64_t tokens_before_ = 0, tokens_ = 0;
  double seconds_ = 0;
  double peak_allocated_ = 0, peak_reserved_ = 0;
};

}  // namespace hone
