#include "optim/adamw_rule.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/adamw/dynamic_code.h"

namespace hone {

namespace {

class AdamwRule : public Rule {
 public:
  explicit AdamwRule(const AdamwOptions& options) : options_(options) {}

  std::string_view name() const override { return "adamw"; }

  void choose_state(TrainingFormats& formats) const override {
    formats.has_m = true;
    formats.second_moment = SecondMoment::kWhole;
  }

  bool takes_codes() const override { return true; }

  std::string describe(const TrainingFormats& formats) const override {
    const std::string m = moment_name(formats.m), v = moment_name(formats.v);
    return fmt::format("AdamW, {} moments", m == v ? m : fmt::format("{} and {}", m, v));
  }

  void set_corrections(StepScalars& scalars, int64_t index) const override {
    const auto t = static_cast<double>(index + 1);
    scalars.bias_correction1 = static_cast<float>(1.0 - std::pow(options_.beta1, t));
    scalars.bias_correction2 = static_cast<float>(1.0 - std::pow(options_.beta2, t));
  }

  void step(const Context& context, const RuleStep& step) const override {
    AdamwArgs args{.tensors = {},
                   .scalars = step.scalars,
                   .beta1 = options_.beta1,
                   .beta2 = options_.beta2,
                   .eps = options_.epsilon,
                   .rate_factor = step.rate_factor};
    for (const Parameter* parameter : step.parameters) {
      args.tensors.push_back({.parameter = stepped_part(*parameter),
                              .working_copy = working_copy_of(*parameter),
                              .m = parameter->state().moment1,
                              .v = parameter->state().moment2,
                              .gradient = parameter->gradient().own(),
                              .weight_decay = step.weight_decay,
                              .stream_id = parameter->index(),
                              .first_element = parameter->share().own().begin});
    }
    if (step.host == nullptr) return adamw(context, args);
    const std::vector<AdamwTensor> tensors = std::move(args.tensors);
    step.host->step(context, tensors, fields, [&](std::vector<AdamwTensor> some) {
      args.tensors = std::move(some);
      adamw(context, args);
    });
  }

 private:
  static std::vector<StateStream::Field> fields(AdamwTensor& t) {
    return {{&t.parameter},
            {&t.working_copy, 1, false},
            {&t.m.values},
            {&t.m.scales, kMomentBlock},
            {&t.v.values},
            {&t.v.scales, kMomentBlock},
            {&t.gradient, 1, true, false}};
  }

  AdamwOptions options_;
};

}  // namespace

std::shared_ptr<const Rule> adamw_rule(const AdamwOptions& options) { return std::make_shared<AdamwRule>(options); }

}  // namespace hone
