#include "optim/adafactor_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/adafactor/adafactor.h"

namespace hone {

namespace {

class AdafactorRule : public Rule {
 public:
  explicit AdafactorRule(const AdafactorOptions& options) : options_(options) {}

  std::string_view name() const override { return "adafactor"; }

  void choose_state(TrainingFormats& formats) const override {
    formats.has_m = has_m();
    formats.second_moment = SecondMoment::kFactored;
  }

  std::string describe(const TrainingFormats& formats) const override {
    return fmt::format("Adafactor, float32 factors{}",
                       has_m() ? fmt::format(", {} first moments", moment_name(formats.m)) : "");
  }

  bool makes_rate() const override { return options_.relative_step; }

  double rate(double scheduled, int64_t index) const override {
    if (!options_.relative_step) return scheduled;
    const auto t = static_cast<double>(index + 1);
    return std::min(options_.warmup_init ? 1e-6 * t : 1e-2, 1.0 / std::sqrt(t));
  }

  void set_corrections(StepScalars& scalars, int64_t index) const override {
    scalars.bias_correction2 = static_cast<float>(std::pow(static_cast<double>(index + 1), options_.decay_rate));
  }

  void step(const Context& context, const RuleStep& step) const override {
    AdafactorArgs args{.tensors = {},
                       .scalars = step.scalars,
                       .eps1 = options_.eps1,
                       .eps2 = options_.eps2,
                       .clip_threshold = options_.clip_threshold,
                       .beta1 = options_.beta1,
                       .scale_parameter = options_.scale_parameter,
                       .rate_factor = step.rate_factor};
    for (const Parameter* parameter : step.parameters) {
      args.tensors.push_back({.parameter = stepped_part(*parameter),
                              .working_copy = working_copy_of(*parameter),
                              .rows = parameter->state().row_moments,
                              .columns = parameter->state().column_moments,
                              .v = parameter->state().moment2.values,
                              .m = parameter->state().moment1.values,
                              .gradient = parameter->gradient().own(),
                              .weight_decay = step.weight_decay,
                              .stream_id = parameter->index()});
    }
    adafactor(context, args);
  }

 private:
  bool has_m() const { return options_.beta1 > 0; }

  AdafactorOptions options_;
};

}  // namespace

std::shared_ptr<const Rule> adafactor_rule(const AdafactorOptions& options) {
  return std::make_shared<AdafactorRule>(options);
}

}  // namespace hone
