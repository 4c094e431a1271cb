// Optimizer: clipping by one global norm, then a step of every trainable parameter of a store; or steps without
// clipping of one group of parameters after the other, while backward is at work. The arithmetic is ops.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/buffer.h"
#include "dist/data_parallel.h"
#include "params/parameter_store.h"
#include "tape/step_scalars.h"

namespace hone {

enum class OptimizerKind {
  kAdamw,      ///< ops/adamw
  kAdafactor,  ///< ops/adafactor
  kLion,       ///< ops/momentum
  kSgd,        ///< ops/momentum
};

/// "adamw", as in the configuration.
std::string_view name_of(OptimizerKind kind);

/// What Adafactor has of its own; defaults are those of Hugging Face's `optim: adafactor`.
struct AdafactorOptions {
  double eps1 = 1e-30, eps2 = 1e-3;
  double clip_threshold = 1;
  double decay_rate = -0.8;      ///< β2t = 1 - t^decay_rate
  double beta1 = 0;              ///< 0: no first moment
  bool scale_parameter = false;  ///< the rate is times the parameter's RMS
  bool relative_step = false;    ///< the rate is min(1e-2, 1 / √t), whatever the schedule says
  bool warmup_init = false;      ///< with relative_step: min(1e-6 · t, 1 / √t)
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamw;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< of AdamW; Lion has no epsilon
  double momentum = 0;                                ///< of SGD
  bool nesterov = false;                              ///< of SGD with momentum
  AdafactorOptions adafactor = {};
  double weight_decay = 0;
  double max_grad_norm = 1;             ///< 0: no clipping
  double lora_b_rate = 1;               ///< B of adapters steps at this times the rate of everything else (LoRA+)
  bool decay_norms_and_biases = false;  ///< false: no decay on tensors of fewer than two dimensions

  /// What it keeps of a parameter.
  bool has_m() const;
  SecondMoment second_moment() const;

  /// The rate of step `index` (from 0) where the schedule says `scheduled`.
  double rate(double scheduled, int64_t index) const;
  /// Writes the rate and the corrections of that step.
  void set_step(StepScalars& scalars, double scheduled, int64_t index) const;
};

class Optimizer {
 public:
  /// Takes the store's trainable parameters at the time of each call; their formats() say what the options keep. With
  /// `ranks`, whose gradients are sums when they come here, each rank steps its own elements of what is sharded.
  Optimizer(ParameterStore& store, const OptimizerOptions& options, DataParallel* ranks = nullptr);

  /// Writes grad_norm, clip_coefficient and nonfinite into the scalars (device memory): the same bits on all ranks.
  /// Where some state is sharded, gradients are measured as their sums over ranks arrive.
  void measure(const Context& context, StepScalars* scalars);
  /// Steps every trainable parameter with the scalars' rate, corrections and clip coefficient; nothing if nonfinite.
  /// Sharded values are on their way to every rank afterwards, who reads them waits.
  void update(const Context& context, const StepScalars* scalars);

  /// The same in groups: after begin_groups(), step_group() for disjoint ones. The norm in the scalars is that of the
  /// groups so far, so nothing can be clipped, and a gradient that is not finite voids its group and those after it.
  void begin_groups() { measured_.clear(); }
  void step_group(const Context& context, const std::vector<Parameter*>& parameters, StepScalars* scalars);

  /// After measure() or groups: the name of the first parameter whose gradient is not finite, or "" (of what this rank
  /// has measured). Waits.
  std::string first_nonfinite(Stream& stream);

 private:
  void add_squares(const Context& context, const std::vector<Parameter*>& parameters);
  void finish_norm(const Context& context, StepScalars* scalars);
  void update(const Context& context, const std::vector<Parameter*>& parameters, const StepScalars* scalars);
  /// Parameters that step at the same rate.
  struct RateGroup {
    std::vector<Parameter*> parameters;
    double rate_factor = 1;  ///< of the scalars' rate
  };
  std::vector<Parameter*> measured_here(const std::vector<Parameter*>& parameters) const;
  std::vector<RateGroup> by_rate(const std::vector<Parameter*>& parameters) const;
  void step_by_adamw(const Context& context, const RateGroup& group, const StepScalars* scalars);
  void step_by_adafactor(const Context& context, const RateGroup& group, const StepScalars* scalars);
  void step_by_momentum(const Context& context, const RateGroup& group, const StepScalars* scalars);
  double decay_of(const Parameter& parameter) const;

  ParameterStore& store_;
  OptimizerOptions options_;
  DataParallel* ranks_;
  Buffer results_;
  std::vector<const Parameter*> measured_;  // in this step, in order
};

}  // namespace hone
