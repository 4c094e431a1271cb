#include "optim/momentum_rule.h"

#include <fmt/format.h>

#include "ops/momentum/momentum.h"

namespace hone {

namespace {

/// Steps with the op ops/momentum, whose args contain the rule and its decays.
void step_by(const Context& context, const RuleStep& step, MomentumArgs args) {
  args.scalars = step.scalars;
  args.rate_factor = step.rate_factor;
  for (const Parameter* parameter : step.parameters) {
    args.tensors.push_back({.parameter = stepped_part(*parameter),
                            .working_copy = working_copy_of(*parameter),
                            .m = parameter->state().moment1.values,
                            .gradient = parameter->gradient().own(),
                            .weight_decay = step.weight_decay,
                            .stream_id = parameter->index(),
                            .first_element = parameter->share().own().begin});
  }
  if (step.host == nullptr) return momentum(context, args);
  const auto fields = [](MomentumTensor& t) {
    return std::vector<StateStream::Field>{
        {&t.parameter}, {&t.working_copy, 1, false}, {&t.m}, {&t.gradient, 1, true, false}};
  };
  const std::vector<MomentumTensor> tensors = std::move(args.tensors);
  step.host->step(context, tensors, fields, [&](std::vector<MomentumTensor> some) {
    args.tensors = std::move(some);
    momentum(context, args);
  });
}

class LionRule : public Rule {
 public:
  explicit LionRule(const LionOptions& options) : options_(options) {}

  std::string_view name() const override { return "lion"; }

  void choose_state(TrainingFormats& formats) const override {
    formats.has_m = true;
    formats.second_moment = SecondMoment::kNone;
  }

  std::string describe(const TrainingFormats& formats) const override {
    return fmt::format("Lion, {} moments", moment_name(formats.m));
  }

  void step(const Context& context, const RuleStep& step) const override {
    step_by(context, step,
            {.tensors = {}, .rule = MomentumRule::kLion, .beta1 = options_.beta1, .beta2 = options_.beta2});
  }

 private:
  LionOptions options_;
};

class SgdRule : public Rule {
 public:
  explicit SgdRule(const SgdOptions& options) : options_(options) {}

  std::string_view name() const override { return "sgd"; }

  void choose_state(TrainingFormats& formats) const override {
    formats.has_m = options_.momentum > 0;
    formats.second_moment = SecondMoment::kNone;
  }

  std::string describe(const TrainingFormats& formats) const override {
    return options_.momentum > 0 ? fmt::format("SGD, {} momentum", moment_name(formats.m)) : "SGD";
  }

  void step(const Context& context, const RuleStep& step) const override {
    step_by(context, step,
            {.tensors = {},
             .rule = options_.nesterov ? MomentumRule::kNesterov : MomentumRule::kSgd,
             .beta1 = options_.momentum});
  }

 private:
  SgdOptions options_;
};

}  // namespace

std::shared_ptr<const Rule> lion_rule(const LionOptions& options) { return std::make_shared<LionRule>(options); }

std::shared_ptr<const Rule> sgd_rule(const SgdOptions& options) { return std::make_shared<SgdRule>(options); }

}  // namespace hone
