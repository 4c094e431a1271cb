// Rule: the state that an optimizer keeps for parameters, and its step. Each rule's arithmetic is an op (src/ops).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/stream/context.h"
#include "optim/state_stream.h"
#include "params/parameter.h"
#include "tape/step_scalars.h"

namespace hone {

/// The arguments of a step: parameters of one group, each with elements on this rank.
struct RuleStep {
  std::vector<Parameter*> parameters;
  const StepScalars* scalars = nullptr;
  double rate_factor = 1;       ///< multiplies the scalars' learning rate
  double weight_decay = 0;      ///< multiplied by the learning rate
  StateStream* host = nullptr;  ///< copies what is in host memory to the device in pieces (elementwise rules alone);
                                ///< null: nothing is there
};

class Rule {
 public:
  virtual ~Rule() = default;

  /// The rule's name in the configuration, in profiles and messages: "adamw".
  virtual std::string_view name() const = 0;
  /// Writes the state that the rule keeps for a parameter: has_m, second_moment and whole_matrices.
  virtual void choose_state(TrainingFormats& formats) const = 0;
  /// Whether the rule supports 8-bit moments.
  virtual bool takes_codes() const { return false; }
  /// The rule's name and state in these formats, for tables: "AdamW, int8 moments".
  virtual std::string describe(const TrainingFormats& formats) const = 0;
  virtual bool runs_on(Device) const { return true; }

  /// Whether rate() differs from the schedule's rate.
  virtual bool makes_rate() const { return false; }
  /// The learning rate of step `index` (from 0), where the schedule gives `scheduled`.
  virtual double rate(double scheduled, int64_t) const { return scheduled; }
  /// Writes the bias corrections that step() reads. At most one rule of an optimizer does so.
  virtual void set_corrections(StepScalars&, int64_t /*index*/) const {}

  /// Steps this rank's elements; does nothing if the scalars' nonfinite is set.
  virtual void step(const Context& context, const RuleStep& step) const = 0;
};

/// A moment's dtype for tables: "float32", or "int8" for 8-bit codes, signed or unsigned.
std::string moment_name(DType dtype);

/// The elements of a parameter that this rank steps.
inline Tensor stepped_part(const Parameter& parameter) {
  return parameter.state().has_master() ? parameter.state().master : own_value(parameter);
}

/// The rank's part of the working copy, which a step of the master rewrites; undefined without a master.
inline Tensor working_copy_of(const Parameter& parameter) {
  return parameter.state().has_master() ? own_value(parameter) : Tensor{};
}

}  // namespace hone
