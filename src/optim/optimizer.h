// Optimizer: clips gradients by their global norm and steps all trainable parameters of a store; or, without clipping,
// steps some parameters at a time during backward. Groups of parameters have their own rule (rule.h), rate and decay.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory/buffer.h"
#include "dist/exchange/data_parallel.h"
#include "optim/adamw_rule.h"
#include "params/parameter_store.h"
#include "tape/host_side.h"
#include "tape/step_scalars.h"

namespace hone {

/// Parameters with one rule, rate and decay.
struct OptimizerGroup {
  std::shared_ptr<const Rule> rule;
  std::function<bool(const Parameter&)> takes;
  double rate_factor = 1;  ///< multiplies the learning rate
  double weight_decay = 0;
};

/// Options that divide a rule's parameters into groups.
struct GroupOptions {
  double weight_decay = 0;
  bool decay_norms_and_biases = false;  ///< false: no decay on tensors of fewer than two dimensions
  double lora_b_rate = 1;               ///< multiplies the rate of the factor B of adapters (LoRA+)
};

/// The groups in which `rule` steps the parameters that `takes` selects; an empty `takes` selects all.
std::vector<OptimizerGroup> groups_of(const std::shared_ptr<const Rule>& rule, const GroupOptions& options = {},
                                      const std::function<bool(const Parameter&)>& takes = {});

struct OptimizerOptions {
  std::vector<OptimizerGroup> groups =
      groups_of(adamw_rule());  ///< the first group that takes a parameter steps it; every parameter needs one
  double max_grad_norm = 1;     ///< 0: no clipping

  const OptimizerGroup& group_of(const Parameter& parameter) const;
  /// The rules of the groups, without repetitions, in the order of the groups.
  std::vector<const Rule*> rules() const;

  /// The name of the first group's rule: "adamw".
  std::string_view name() const { return groups.front().rule->name(); }
  /// The training state that a parameter's rule chooses, in these formats.
  TrainingFormats state_of(const Parameter& parameter, TrainingFormats formats) const;
  /// "Muon, float32 momentum; AdamW, float32 moments"
  std::string describe(const TrainingFormats& formats) const;
  /// Throws UserError at `where` if a rule does not run on the device.
  void require(Device device, const std::string& where) const;

  /// The learning rate of step `index` (from 0), where the schedule gives `scheduled`.
  double rate(double scheduled, int64_t index) const;
  /// Writes the learning rate and the corrections of step `index` into the scalars.
  void set_step(StepScalars& scalars, double scheduled, int64_t index) const;
};

class Optimizer {
 public:
  /// Each call reads the store's trainable parameters; their formats() must be those of the options. With `ranks`,
  /// gradients have been summed over ranks, and each rank steps its own elements of sharded parameters. `host`: of
  /// parameters on the host, which are measured and stepped there; null if there are none.
  Optimizer(ParameterStore& store, const OptimizerOptions& options, DataParallel* ranks = nullptr,
            HostSide* host = nullptr);

  /// The scalars of a step in device memory and, equal until measure(), in host memory (null without a host side).
  struct Scalars {
    Scalars(StepScalars* on_device, StepScalars* on_host = nullptr) : device(on_device), host(on_host) {}
    StepScalars *device, *host;
  };

  /// Writes grad_norm, clip_coefficient and nonfinite into the scalars: the same bits on all ranks and on both sides.
  /// If any state is sharded, gradients are measured as their sums over ranks arrive.
  void measure(const Context& context, const Scalars& scalars);
  /// Steps all trainable parameters with the scalars' rate, corrections and clip coefficient; does nothing if nonfinite
  /// is set. Starts sending sharded values to all ranks; readers wait for them.
  void update(const Context& context, const Scalars& scalars);

  /// Measures and steps in parts: after begin_parts(), call step_part() for disjoint sets of parameters. The norm in
  /// the scalars covers the parts so far, so gradients cannot be clipped, and a gradient that is not finite skips its
  /// part and all later parts.
  void begin_parts() { measured_.clear(); }
  void step_part(const Context& context, const std::vector<Parameter*>& parameters, StepScalars* scalars);

  /// After measure() or step_part(): the name of the first parameter whose gradient is not finite, among those that
  /// this rank has measured, or "". Waits for the stream.
  std::string first_nonfinite(Stream& stream);

 private:
  /// `results`: in the memory of the context. `goes_on`: they are of this step so far, else they begin it.
  void add_squares(const Context& context, Buffer& results, const std::vector<Parameter*>& parameters, bool goes_on);
  /// Adds the squares of parameters on the device; over all ranks, if these have different elements.
  void add_squares_on_device(const Context& context, const std::vector<Parameter*>& parameters);
  void finish_norm(const Context& context, StepScalars* scalars);
  /// Adds the squares of these parameters, which are on the host, to those of the device, and finishes the norm there.
  void measure_on_host(const std::vector<Parameter*>& parameters, const Scalars& scalars);
  void update(const Context& context, const std::vector<Parameter*>& parameters, const StepScalars* scalars);
  std::vector<Parameter*> measured_here(const std::vector<Parameter*>& parameters) const;

  ParameterStore& store_;
  OptimizerOptions options_;
  DataParallel* ranks_;
  HostSide* host_;
  std::optional<StateStream> offloaded_;  // if the device steps what is in host memory
  Buffer results_, host_results_;
  bool ends_on_host_ = false;               // the measurement
  std::vector<const Parameter*> measured_;  // in this step, in order
};

}  // namespace hone
