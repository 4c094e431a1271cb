#include "optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "ops/grad_norm/grad_norm.h"

namespace hone {

namespace {

/// Results of sum_of_squares: the sum (float64), then the index of the first gradient that is not finite (i32).
constexpr size_t kIndexOffset = 64;

}  // namespace

std::string moment_name(DType dtype) { return size_of(dtype) == 1 ? "int8" : std::string(name_of(dtype)); }

std::vector<OptimizerGroup> groups_of(const std::shared_ptr<const Rule>& rule, const GroupOptions& options,
                                      const std::function<bool(const Parameter&)>& takes) {
  std::vector<OptimizerGroup> groups;
  const auto add = [&](bool (*is)(const Parameter&), double rate_factor, double weight_decay) {
    groups.push_back(
        {rule, [takes, is](const Parameter& p) { return is(p) && (!takes || takes(p)); }, rate_factor, weight_decay});
  };
  if (options.lora_b_rate != 1) {
    add(
        [](const Parameter& p) {
          return p.spec().kind == ParameterKind::kLora && p.name().find(".lora_B") != std::string::npos;
        },
        options.lora_b_rate, options.weight_decay);
  }
  if (!options.decay_norms_and_biases) add([](const Parameter& p) { return p.shape().rank() < 2; }, 1, 0);
  add([](const Parameter&) { return true; }, 1, options.weight_decay);
  return groups;
}

const OptimizerGroup& OptimizerOptions::group_of(const Parameter& parameter) const {
  for (const OptimizerGroup& group : groups) {
    if (group.takes(parameter)) return group;
  }
  HONE_ASSERT(false, parameter.name());
}

std::vector<const Rule*> OptimizerOptions::rules() const {
  std::vector<const Rule*> rules;
  for (const OptimizerGroup& group : groups) {
    if (std::find(rules.begin(), rules.end(), group.rule.get()) == rules.end()) rules.push_back(group.rule.get());
  }
  return rules;
}

TrainingFormats OptimizerOptions::state_of(const Parameter& parameter, TrainingFormats formats) const {
  group_of(parameter).rule->choose_state(formats);
  return formats;
}

std::string OptimizerOptions::describe(const TrainingFormats& formats) const {
  std::string text;
  for (const Rule* rule : rules()) text += (text.empty() ? "" : "; ") + rule->describe(formats);
  return text;
}

void OptimizerOptions::require(Device device, const std::string& where) const {
  for (const Rule* rule : rules()) {
    if (rule->runs_on(device)) continue;
    throw UserError(fmt::format("optim {} runs only on the CPU in this version, but the device is a GPU", rule->name()),
                    where, "choose the device cpu, or another optim");
  }
}

double OptimizerOptions::rate(double scheduled, int64_t index) const {
  return groups.front().rule->rate(scheduled, index);
}

void OptimizerOptions::set_step(StepScalars& scalars, double scheduled, int64_t index) const {
  scalars.learning_rate = static_cast<float>(rate(scheduled, index));
  for (const Rule* rule : rules()) rule->set_corrections(scalars, index);
}

namespace {

/// Trainable parameters by the side on which they are.
struct OnSides {
  std::vector<Parameter*> device, host;
};

OnSides on_sides(const std::vector<Parameter*>& parameters) {
  OnSides sides;
  for (Parameter* p : parameters) (p->value().home().host_computed ? sides.host : sides.device).push_back(p);
  return sides;
}

}  // namespace

Optimizer::Optimizer(ParameterStore& store, const OptimizerOptions& options, DataParallel* ranks, HostSide* host)
    : store_(store), options_(options), ranks_(ranks), host_(host) {}

void Optimizer::measure(const Context& context, const Scalars& scalars) {
  measured_.clear();
  const OnSides trained = on_sides(store_.trainable());
  add_squares_on_device(context, trained.device);
  ends_on_host_ = !trained.host.empty();
  ends_on_host_ ? measure_on_host(trained.host, scalars) : finish_norm(context, scalars.device);
}

void Optimizer::add_squares_on_device(const Context& context, const std::vector<Parameter*>& parameters) {
  if (ranks_ == nullptr || !ranks_->shards()) return add_squares(context, results_, parameters, false);
  for (const Bucket& bucket : ranks_->buckets()) {
    if (bucket.home().host_computed) continue;  // whole on every rank, as its sum of squares is
    ranks_->await_sums(context, bucket);
    add_squares(context, results_, measured_here(bucket.parameters), !measured_.empty());
  }
  const Tensor sum = results_.tensor({1}, DType::kF64);
  ranks_->sum(context, {&sum, 1});
  ranks_->await_measurements(context);
}

void Optimizer::measure_on_host(const std::vector<Parameter*>& parameters, const Scalars& scalars) {
  const Context& context = host_->context();
  if (host_results_.size() == 0) host_results_ = Buffer(Device{}, 2 * kIndexOffset);
  const auto all = [](const Buffer& results) {
    return results.tensor({static_cast<int64_t>(results.size())}, DType::kU8);
  };
  const auto bytes = [](StepScalars* of, Device device) {
    return Tensor{reinterpret_cast<std::byte*>(of), DType::kU8, {sizeof(StepScalars)}, device};
  };
  host_->cross(Side::kHost, {{all(host_results_), all(results_)}});
  add_squares(context, host_results_, parameters, true);  // to nothing, where the device has no gradients of this rank
  finish_grad_norm(context, {.sum_of_squares = host_results_.tensor({1}, DType::kF64), .scalars = scalars.host});
  host_->cross(Side::kDevice, {{bytes(scalars.device, results_.device()), bytes(scalars.host, Device{})}});
}

/// The parameters that this rank measures, so that all ranks together measure each element once: the first group alone
/// measures what its ranks shard, the first expert group the experts that are spread over it, and rank 0 the rest.
std::vector<Parameter*> Optimizer::measured_here(const std::vector<Parameter*>& parameters) const {
  std::vector<Parameter*> here;
  for (Parameter* p : parameters) {
    const bool measured = p->share().spread()    ? ranks_->measures_experts()
                          : p->share().sharded() ? ranks_->replica() == 0
                                                 : ranks_->rank() == 0;
    if (measured && p->share().own().count > 0) here.push_back(p);
  }
  return here;
}

void Optimizer::add_squares(const Context& context, Buffer& results, const std::vector<Parameter*>& parameters,
                            bool goes_on) {
  if (parameters.empty() && goes_on) return;
  if (results.size() == 0) results = Buffer(context.device(), 2 * kIndexOffset);
  const int32_t earlier = goes_on ? static_cast<int32_t>(measured_.size()) : -1;
  std::vector<Tensor> gradients;
  for (const Parameter* parameter : parameters) gradients.push_back(parameter->gradient().own());
  measured_.insert(measured_.end(), parameters.begin(), parameters.end());
  sum_of_squares(context, {.gradients = std::move(gradients),
                           .sum_of_squares = results.tensor({1}, DType::kF64),
                           .first_nonfinite = results.tensor({1}, DType::kI32, kIndexOffset),
                           .earlier_gradients = earlier});
}

void Optimizer::finish_norm(const Context& context, StepScalars* scalars) {
  finish_grad_norm(context, {.sum_of_squares = results_.tensor({1}, DType::kF64), .scalars = scalars});
}

void Optimizer::update(const Context& context, const Scalars& scalars) {
  if (ranks_ == nullptr || !ranks_->shards()) {
    const OnSides trained = on_sides(store_.trainable());
    update(context, trained.device, scalars.device);
    if (!trained.host.empty()) update(host_->context(), trained.host, scalars.host);
    return;
  }
  // In the order of forward: the values of one bucket are sent while the next one is stepped.
  for (size_t i = ranks_->buckets().size(); i-- > 0;) {
    const Bucket& bucket = ranks_->buckets()[i];
    if (bucket.home().host_computed) {
      update(host_->context(), bucket.parameters, scalars.host);
      continue;
    }
    update(context, bucket.parameters, scalars.device);
    ranks_->gather_values(context, bucket);
  }
}

void Optimizer::update(const Context& context, const std::vector<Parameter*>& parameters, const StepScalars* scalars) {
  std::map<const OptimizerGroup*, std::vector<Parameter*>> members;  // in the order of the options
  for (Parameter* parameter : parameters) {
    if (parameter->share().own().count > 0) members[&options_.group_of(*parameter)].push_back(parameter);
  }
  if (store_.steps_from_host() && !offloaded_) offloaded_.emplace(context.device());
  for (auto& [group, stepped] : members) {
    const bool on_host = stepped.front()->value().home().host_computed;
    group->rule->step(context, {.parameters = std::move(stepped),
                                .scalars = scalars,
                                .rate_factor = group->rate_factor,
                                .weight_decay = group->weight_decay,
                                .host = offloaded_ && !on_host ? &*offloaded_ : nullptr});
  }
}

void Optimizer::step_part(const Context& context, const std::vector<Parameter*>& parameters, StepScalars* scalars) {
  if (parameters.empty()) return;
  add_squares(context, results_, parameters, !measured_.empty());
  finish_norm(context, scalars);
  update(context, parameters, scalars);
}

std::string Optimizer::first_nonfinite(Stream& stream) {
  const Buffer& results = ends_on_host_ ? host_results_ : results_;
  Stream& measured_on = ends_on_host_ ? host_->stream() : stream;
  const int32_t index = measured_on.download<int32_t>(results.tensor({1}, DType::kI32, kIndexOffset)).front();
  const bool known = index >= 0 && index < static_cast<int32_t>(measured_.size());
  return known ? measured_[static_cast<size_t>(index)]->name() : "";
}

}  // namespace hone
