// Optimizer: clipping by one global norm, then a step of every trainable parameter of a store; or, without clipping,
// steps of some parameters at a time, during backward. Groups of parameters differ in their rule (rule.h), rate and
// decay.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/buffer.h"
#include "dist/data_parallel.h"
#include "optim/adamw_rule.h"
#include "params/parameter_store.h"
#include "tape/step_scalars.h"

namespace hone {

/// Parameters that step alike.
struct OptimizerGroup {
  std::shared_ptr<const Rule> rule;
  std::function<bool(const Parameter&)> takes;
  double rate_factor = 1;  ///< multiplies the learning rate
  double weight_decay = 0;
};

/// How a rule's parameters are divided into groups.
struct GroupOptions {
  double weight_decay = 0;
  bool decay_norms_and_biases = false;  ///< false: no decay on tensors of fewer than two dimensions
  double lora_b_rate = 1;               ///< multiplies the rate of B of adapters (LoRA+)
};

/// The groups in which `rule` steps the parameters selected by `takes`; all, if that is empty.
std::vector<OptimizerGroup> groups_of(const std::shared_ptr<const Rule>& rule, const GroupOptions& options = {},
                                      const std::function<bool(const Parameter&)>& takes = {});

struct OptimizerOptions {
  std::vector<OptimizerGroup> groups =
      groups_of(adamw_rule());  ///< the first that takes a parameter steps it; each has one
  double max_grad_norm = 1;     ///< 0: no clipping

  const OptimizerGroup& group_of(const Parameter& parameter) const;
  /// Each rule once, in the order of the groups.
  std::vector<const Rule*> rules() const;

  /// "adamw"; with several rules the first.
  std::string_view name() const { return groups.front().rule->name(); }
  /// The training state of a parameter: its rule's choice, in these formats.
  TrainingFormats state_of(const Parameter& parameter, TrainingFormats formats) const;
  /// "Muon, float32 momentum; AdamW, float32 moments"
  std::string describe(const TrainingFormats& formats) const;
  /// UserError at `where` if a rule has no code for the device.
  void require(Device device, const std::string& where) const;

  /// The rate of step `index` (from 0) for the schedule's rate `scheduled`.
  double rate(double scheduled, int64_t index) const;
  /// Writes the rate and the corrections of that step.
  void set_step(StepScalars& scalars, double scheduled, int64_t index) const;
};

class Optimizer {
 public:
  /// Reads the store's trainable parameters at each call; their formats() must be those of the options. With `ranks`,
  /// gradients are sums over ranks when they arrive here, and each rank steps its own elements of sharded parameters.
  Optimizer(ParameterStore& store, const OptimizerOptions& options, DataParallel* ranks = nullptr);

  /// Writes grad_norm, clip_coefficient and nonfinite into the scalars (device memory): the same bits on all ranks.
  /// If some state is sharded, gradients are measured as their sums over ranks arrive.
  void measure(const Context& context, StepScalars* scalars);
  /// Steps every trainable parameter with the scalars' rate, corrections and clip coefficient; nothing if nonfinite.
  /// Afterwards sharded values are being sent to every rank; readers wait for them.
  void update(const Context& context, const StepScalars* scalars);

  /// The same in parts: after begin_parts(), step_part() for disjoint ones. The norm in the scalars covers the parts up
  /// to now, so nothing can be clipped, and a gradient that is not finite voids its part and those after it.
  void begin_parts() { measured_.clear(); }
  void step_part(const Context& context, const std::vector<Parameter*>& parameters, StepScalars* scalars);

  /// After measure() or parts: the name of the first parameter whose gradient is not finite, or "" (among those that
  /// this rank has measured). Waits.
  std::string first_nonfinite(Stream& stream);

 private:
  void add_squares(const Context& context, const std::vector<Parameter*>& parameters);
  void finish_norm(const Context& context, StepScalars* scalars);
  void update(const Context& context, const std::vector<Parameter*>& parameters, const StepScalars* scalars);
  std::vector<Parameter*> measured_here(const std::vector<Parameter*>& parameters) const;

  ParameterStore& store_;
  OptimizerOptions options_;
  DataParallel* ranks_;
  std::optional<StateStream> host_;  // where some state is in host memory
  Buffer results_;
  std::vector<const Parameter*> measured_;  // in this step, in order
};

}  // namespace hone
