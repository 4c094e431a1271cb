#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "ops/adafactor/adafactor.h"
#include "ops/adamw/adamw.h"
#include "ops/grad_norm/grad_norm.h"
#include "ops/momentum/momentum.h"

namespace hone {

namespace {

/// Results of sum_of_squares: the sum (float64), then the index of the first gradient that is not finite (i32).
constexpr size_t kIndexOffset = 64;

}  // namespace

std::string_view name_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamw:
      return "adamw";
    case OptimizerKind::kAdafactor:
      return "adafactor";
    case OptimizerKind::kLion:
      return "lion";
    case OptimizerKind::kSgd:
      return "sgd";
  }
  HONE_ASSERT(false, "kind out of range");
}

bool OptimizerOptions::has_m() const {
  if (kind == OptimizerKind::kSgd) return momentum > 0;
  return kind != OptimizerKind::kAdafactor || adafactor.beta1 > 0;
}

SecondMoment OptimizerOptions::second_moment() const {
  if (kind == OptimizerKind::kAdamw) return SecondMoment::kWhole;
  return kind == OptimizerKind::kAdafactor ? SecondMoment::kFactored : SecondMoment::kNone;
}

double OptimizerOptions::rate(double scheduled, int64_t index) const {
  if (kind != OptimizerKind::kAdafactor || !adafactor.relative_step) return scheduled;
  const auto t = static_cast<double>(index + 1);
  return std::min(adafactor.warmup_init ? 1e-6 * t : 1e-2, 1.0 / std::sqrt(t));
}

void OptimizerOptions::set_step(StepScalars& scalars, double scheduled, int64_t index) const {
  const auto t = static_cast<double>(index + 1);
  scalars.learning_rate = static_cast<float>(rate(scheduled, index));
  scalars.bias_correction1 = static_cast<float>(1.0 - std::pow(beta1, t));
  scalars.bias_correction2 = static_cast<float>(kind == OptimizerKind::kAdafactor ? std::pow(t, adafactor.decay_rate)
                                                                                  : 1.0 - std::pow(beta2, t));
}

Optimizer::Optimizer(ParameterStore& store, const OptimizerOptions& options, DataParallel* ranks)
    : store_(store), options_(options), ranks_(ranks) {}

void Optimizer::measure(const Context& context, StepScalars* scalars) {
  measured_.clear();
  if (ranks_ == nullptr || !ranks_->shards()) {
    add_squares(context, store_.trainable());
    return finish_norm(context, scalars);
  }
  for (const Bucket& bucket : ranks_->buckets()) {
    ranks_->await_sums(context, bucket);
    add_squares(context, measured_here(bucket.parameters));
  }
  finish_norm(context, scalars);
}

/// Each logical element once over all ranks: where some are sharded, the first rank measures those that are not.
std::vector<Parameter*> Optimizer::measured_here(const std::vector<Parameter*>& parameters) const {
  std::vector<Parameter*> here;
  for (Parameter* p : parameters) {
    if (p->own().count > 0 && (p->sharded() || ranks_->rank() == 0)) here.push_back(p);
  }
  return here;
}

void Optimizer::add_squares(const Context& context, const std::vector<Parameter*>& parameters) {
  if (parameters.empty() && !measured_.empty()) return;
  if (results_.size() == 0) results_ = Buffer(context.device(), 2 * kIndexOffset);
  const int32_t earlier = measured_.empty() ? -1 : static_cast<int32_t>(measured_.size());
  std::vector<Tensor> gradients;
  for (const Parameter* parameter : parameters) gradients.push_back(parameter->own_gradient());
  measured_.insert(measured_.end(), parameters.begin(), parameters.end());
  sum_of_squares(context, {.gradients = std::move(gradients),
                           .sum_of_squares = results_.tensor({1}, DType::kF64),
                           .first_nonfinite = results_.tensor({1}, DType::kI32, kIndexOffset),
                           .earlier_gradients = earlier});
}

void Optimizer::finish_norm(const Context& context, StepScalars* scalars) {
  const Tensor sum = results_.tensor({1}, DType::kF64);
  if (ranks_ != nullptr && ranks_->shards()) {
    ranks_->sum(context, {&sum, 1});
    ranks_->await_measurements(context);
  }
  finish_grad_norm(context, {.sum_of_squares = sum, .scalars = scalars});
}

void Optimizer::update(const Context& context, const StepScalars* scalars) {
  if (ranks_ == nullptr || !ranks_->shards()) return update(context, store_.trainable(), scalars);
  // In the order of forward: the values of one bucket are on their way while the next one is stepped.
  for (size_t i = ranks_->buckets().size(); i-- > 0;) {
    const Bucket& bucket = ranks_->buckets()[i];
    update(context, bucket.parameters, scalars);
    ranks_->gather_values(context, bucket);
  }
}

void Optimizer::update(const Context& context, const std::vector<Parameter*>& parameters, const StepScalars* scalars) {
  for (const RateGroup& group : by_rate(parameters)) {
    switch (options_.kind) {
      case OptimizerKind::kAdamw:
        step_by_adamw(context, group, scalars);
        break;
      case OptimizerKind::kAdafactor:
        step_by_adafactor(context, group, scalars);
        break;
      case OptimizerKind::kLion:
      case OptimizerKind::kSgd:
        step_by_momentum(context, group, scalars);
        break;
    }
  }
}

std::vector<Optimizer::RateGroup> Optimizer::by_rate(const std::vector<Parameter*>& parameters) const {
  RateGroup others, lora_b{.parameters = {}, .rate_factor = options_.lora_b_rate};
  for (Parameter* parameter : parameters) {
    if (parameter->own().count == 0) continue;
    const bool is_b =
        parameter->kind() == ParameterKind::kLora && parameter->name().find(".lora_B") != std::string::npos;
    (is_b && options_.lora_b_rate != 1 ? lora_b : others).parameters.push_back(parameter);
  }
  std::vector<RateGroup> groups;
  for (RateGroup* group : {&others, &lora_b}) {
    if (!group->parameters.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

double Optimizer::decay_of(const Parameter& parameter) const {
  return options_.decay_norms_and_biases || parameter.shape().rank() >= 2 ? options_.weight_decay : 0.0;
}

namespace {

/// What is stepped of a parameter on this rank.
Tensor stepped(const Parameter& parameter) {
  return parameter.has_master() ? parameter.master() : parameter.own_value();
}

/// The copy of a parameter that its master's steps refresh.
Tensor working_copy_of(const Parameter& parameter) { return parameter.has_master() ? parameter.own_value() : Tensor{}; }

}  // namespace

void Optimizer::step_by_adamw(const Context& context, const RateGroup& group, const StepScalars* scalars) {
  AdamwArgs args{.tensors = {},
                 .scalars = scalars,
                 .beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .eps = options_.epsilon,
                 .rate_factor = group.rate_factor};
  for (const Parameter* parameter : group.parameters) {
    args.tensors.push_back({.parameter = stepped(*parameter),
                            .working_copy = working_copy_of(*parameter),
                            .m = parameter->moment1(),
                            .v = parameter->moment2(),
                            .gradient = parameter->own_gradient(),
                            .weight_decay = decay_of(*parameter),
                            .stream_id = parameter->index(),
                            .first_element = parameter->own().begin});
  }
  adamw(context, args);
}

void Optimizer::step_by_adafactor(const Context& context, const RateGroup& group, const StepScalars* scalars) {
  const AdafactorOptions& own = options_.adafactor;
  AdafactorArgs args{.tensors = {},
                     .scalars = scalars,
                     .eps1 = own.eps1,
                     .eps2 = own.eps2,
                     .clip_threshold = own.clip_threshold,
                     .beta1 = own.beta1,
                     .scale_parameter = own.scale_parameter,
                     .rate_factor = group.rate_factor};
  for (const Parameter* parameter : group.parameters) {
    args.tensors.push_back({.parameter = stepped(*parameter),
                            .working_copy = working_copy_of(*parameter),
                            .rows = parameter->row_moments(),
                            .columns = parameter->column_moments(),
                            .v = parameter->moment2().values,
                            .m = parameter->moment1().values,
                            .gradient = parameter->own_gradient(),
                            .weight_decay = decay_of(*parameter),
                            .stream_id = parameter->index()});
  }
  adafactor(context, args);
}

void Optimizer::step_by_momentum(const Context& context, const RateGroup& group, const StepScalars* scalars) {
  const bool lion = options_.kind == OptimizerKind::kLion;
  MomentumArgs args{.tensors = {},
                    .scalars = scalars,
                    .rule = lion                ? MomentumRule::kLion
                            : options_.nesterov ? MomentumRule::kNesterov
                                                : MomentumRule::kSgd,
                    .beta1 = lion ? options_.beta1 : options_.momentum,
                    .beta2 = options_.beta2,
                    .rate_factor = group.rate_factor};
  for (const Parameter* parameter : group.parameters) {
    args.tensors.push_back({.parameter = stepped(*parameter),
                            .working_copy = working_copy_of(*parameter),
                            .m = parameter->moment1().values,
                            .gradient = parameter->own_gradient(),
                            .weight_decay = decay_of(*parameter),
                            .stream_id = parameter->index(),
                            .first_element = parameter->own().begin});
  }
  momentum(context, args);
}

void Optimizer::step_group(const Context& context, const std::vector<Parameter*>& parameters, StepScalars* scalars) {
  if (parameters.empty()) return;
  add_squares(context, parameters);
  finish_norm(context, scalars);
  update(context, parameters, scalars);
}

std::string Optimizer::first_nonfinite(Stream& stream) {
  const int32_t index = stream.download<int32_t>(results_.tensor({1}, DType::kI32, kIndexOffset)).front();
  const bool known = index >= 0 && index < static_cast<int32_t>(measured_.size());
  return known ? measured_[static_cast<size_t>(index)]->name() : "";
}

}  // namespace hone
