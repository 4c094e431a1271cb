#include "optim/optimizer.h"

#include "ops/adamw/adamw.h"
#include "ops/grad_norm/grad_norm.h"

namespace hone {

namespace {

/// Results of sum_of_squares: the sum (float64), then the index of the first gradient that is not finite (i32).
constexpr size_t kIndexOffset = 64;

}  // namespace

Optimizer::Optimizer(ParameterStore& store, const OptimizerOptions& options) : store_(store), options_(options) {}

void Optimizer::measure(const Context& context, StepScalars* scalars) {
  measured_.clear();
  add_to_norm(context, store_.trainable(), scalars);
}

void Optimizer::add_to_norm(const Context& context, const std::vector<Parameter*>& parameters, StepScalars* scalars) {
  if (results_.size() == 0) results_ = Buffer(context.device(), 2 * kIndexOffset);
  const int32_t earlier = measured_.empty() ? -1 : static_cast<int32_t>(measured_.size());
  std::vector<Tensor> gradients;
  for (const Parameter* parameter : parameters) gradients.push_back(parameter->gradient());
  measured_.insert(measured_.end(), parameters.begin(), parameters.end());
  const Tensor sum = results_.tensor({1}, DType::kF64);
  sum_of_squares(context, {.gradients = std::move(gradients),
                           .sum_of_squares = sum,
                           .first_nonfinite = results_.tensor({1}, DType::kI32, kIndexOffset),
                           .earlier_gradients = earlier});
  finish_grad_norm(context, {.sum_of_squares = sum, .scalars = scalars});
}

void Optimizer::update(const Context& context, const StepScalars* scalars) {
  update(context, store_.trainable(), scalars);
}

void Optimizer::update(const Context& context, const std::vector<Parameter*>& parameters, const StepScalars* scalars) {
  AdamwArgs args{
      .tensors = {}, .scalars = scalars, .beta1 = options_.beta1, .beta2 = options_.beta2, .eps = options_.epsilon};
  for (const Parameter* parameter : parameters) {
    const bool decays = options_.decay_norms_and_biases || parameter->shape().rank() >= 2;
    args.tensors.push_back({.parameter = parameter->master(),
                            .working_copy = parameter->has_master() ? parameter->value() : Tensor{},
                            .m = parameter->moment1(),
                            .v = parameter->moment2(),
                            .gradient = parameter->gradient(),
                            .weight_decay = decays ? options_.weight_decay : 0.0,
                            .stream_id = parameter->index()});
  }
  adamw(context, args);
}

void Optimizer::step_group(const Context& context, const std::vector<Parameter*>& parameters, StepScalars* scalars) {
  if (parameters.empty()) return;
  add_to_norm(context, parameters, scalars);
  update(context, parameters, scalars);
}

std::string Optimizer::first_nonfinite(Stream& stream) {
  const int32_t index = stream.download<int32_t>(results_.tensor({1}, DType::kI32, kIndexOffset)).front();
  const bool known = index >= 0 && index < static_cast<int32_t>(measured_.size());
  return known ? measured_[static_cast<size_t>(index)]->name() : "";
}

}  // namespace hone
