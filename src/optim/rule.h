// Rule: the state that an optimizer keeps of parameters, and its step. The arithmetic is in one folder of ops.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "optim/state_stream.h"
#include "params/parameter.h"
#include "tape/step_scalars.h"

namespace hone {

/// Parameters of one group to be stepped now. Each has elements on this rank.
struct RuleStep {
  std::vector<Parameter*> parameters;
  const StepScalars* scalars = nullptr;
  double rate_factor = 1;       ///< multiplies the scalars' learning rate
  double weight_decay = 0;      ///< multiplied by the learning rate
  StateStream* host = nullptr;  ///< steps state in host memory; null: where it is
};

class Rule {
 public:
  virtual ~Rule() = default;

  /// "adamw": as in the configuration, in profiles and messages.
  virtual std::string_view name() const = 0;
  /// Writes the state that it keeps of a parameter: has_m, second_moment and whole_matrices.
  virtual void choose_state(TrainingFormats& formats) const = 0;
  /// Whether its moments may have 8 bits.
  virtual bool takes_codes() const { return false; }
  /// Its name and state in these formats, for tables: "AdamW, int8 moments".
  virtual std::string describe(const TrainingFormats& formats) const = 0;
  virtual bool runs_on(Device) const { return true; }

  /// Whether it sets the learning rate itself, and the rate of step `index` (from 0) for the schedule's rate
  /// `scheduled`.
  virtual bool makes_rate() const { return false; }
  virtual double rate(double scheduled, int64_t) const { return scheduled; }
  /// Writes the corrections that step() reads. At most one rule of an optimizer does.
  virtual void set_corrections(StepScalars&, int64_t /*index*/) const {}

  /// Steps the elements of this rank; nothing if the scalars say nonfinite.
  virtual void step(const Context& context, const RuleStep& step) const = 0;
};

/// "float32"; codes of moments are "int8", signed or not.
std::string moment_name(DType dtype);

/// The elements of a parameter that this rank steps.
inline Tensor stepped_part(const Parameter& parameter) {
  return parameter.has_master() ? parameter.master() : parameter.own_value();
}

/// The copy of a parameter that its master's steps refresh, or undefined.
inline Tensor working_copy_of(const Parameter& parameter) {
  return parameter.has_master() ? parameter.own_value() : Tensor{};
}

}  // namespace hone
