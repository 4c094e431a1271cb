// Reads the keys of a run's optimizer, and optim_args, whose names and ranges depend on the optimizer.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "config/run_options.h"
#include "core/base/error.h"
#include "core/base/float_value.h"
#include "core/text/json.h"
#include "optim/adafactor_rule.h"
#include "optim/momentum_rule.h"
#include "optim/muon_rule.h"

namespace hone {

namespace {

struct NumberRange {
  const char* text;
  bool (*holds)(double);
};

constexpr NumberRange kShare{"a number in [0, 1), also in float32", [](double x) { return is_below_one(x); }};
constexpr NumberRange kPositive{"a number above 0, also in float32", [](double x) { return is_positive(x); }};

/// Reads optim_args by name; done() rejects names that have not been read.
class OptimArgs {
 public:
  explicit OptimArgs(const RunConfig::Optim& optim) : optim_(optim) {}

  bool has(const std::string& name) {
    names_.insert(name);
    const auto found = optim_.args->find(name);
    return found != optim_.args->end() && !found->is_null() && *found != "none";
  }

  void number(const std::string& name, double& value, const NumberRange& range) {
    if (!has(name)) return;
    const Json& stated = optim_.args.at(name);
    if (!stated.is_number() || !range.holds(stated.get<double>())) refuse(name, range.text);
    value = stated.get<double>();
  }

  void flag(const std::string& name, bool& value) {
    if (!has(name)) return;
    if (!optim_.args.at(name).is_boolean()) refuse(name, "true or false");
    value = optim_.args.at(name).get<bool>();
  }

  /// Returns one of `choices`; the first if it is not set.
  std::string choice(const std::string& name, const std::vector<std::string>& choices) {
    if (!has(name)) return choices.front();
    const Json& stated = optim_.args.at(name);
    if (std::none_of(choices.begin(), choices.end(), [&](const std::string& choice) { return stated == choice; })) {
      refuse(name, fmt::format("{}", fmt::join(choices, " or ")));
    }
    return stated.get<std::string>();
  }

  void done() const {
    for (const auto& [name, value] : optim_.args->items()) {
      if (names_.contains(name)) continue;
      throw UserError(fmt::format("optim {} takes no argument '{}'.{}", optim_.name, name, did_you_mean(name, names_)),
                      "optim_args", names_.empty() ? "leave optim_args out" : "");
    }
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& expected) const {
    throw UserError(fmt::format("optim_args: {} is {}: expected {}", name, optim_.args.at(name).dump(), expected),
                    "optim_args", "");
  }

 private:
  const RunConfig::Optim& optim_;
  std::set<std::string> names_;
};

SgdOptions read_sgd(OptimArgs& args) {
  SgdOptions options;
  args.number("momentum", options.momentum, kShare);
  args.flag("nesterov", options.nesterov);
  if (options.nesterov && options.momentum == 0) args.refuse("nesterov", "a momentum above 0 with it");
  double dampening = 0;
  args.number("dampening", dampening, {"0: others are known, not in this version", [](double x) { return x == 0; }});
  return options;
}

LionOptions read_lion(OptimArgs& args, const RunConfig::Optim& optim) {
  LionOptions options{.beta1 = optim.adam_beta1, .beta2 = optim.adam_beta2};
  args.number("beta1", options.beta1, kShare);
  args.number("beta2", options.beta2, kShare);
  return options;
}

AdafactorOptions read_adafactor(OptimArgs& args) {
  AdafactorOptions options;
  args.number("eps1", options.eps1, kPositive);
  args.number("eps2", options.eps2, kPositive);
  args.number("clip_threshold", options.clip_threshold, kPositive);
  args.number("decay_rate", options.decay_rate, {"a number below 0", [](double x) { return x < 0; }});
  args.number("beta1", options.beta1, kShare);
  args.flag("scale_parameter", options.scale_parameter);
  args.flag("relative_step", options.relative_step);
  args.flag("warmup_init", options.warmup_init);
  if (options.warmup_init && !options.relative_step) args.refuse("warmup_init", "relative_step with it");
  return options;
}

/// Arguments have the names of torch.optim.Muon.
MuonOptions read_muon(OptimArgs& args) {
  MuonOptions options;
  args.number("momentum", options.momentum, kShare);
  args.flag("nesterov", options.nesterov);
  auto steps = static_cast<double>(options.steps);
  args.number("ns_steps", steps,
              {"a whole number from 1 to 99", [](double x) { return x >= 1 && x < 100 && x == std::floor(x); }});
  options.steps = static_cast<int>(steps);
  args.number("eps", options.epsilon, kPositive);
  const std::string rate = args.choice("adjust_lr_fn", {"original", "match_rms_adamw"});
  if (rate == "match_rms_adamw") options.rate = MuonRate::kMatchRmsAdamw;
  return options;
}

}  // namespace

OptimizerOptions optimizer_options(const RunConfig& config) {
  const RunConfig::Optim& optim = config.optim;
  const GroupOptions groups{.weight_decay = optim.weight_decay,
                            .decay_norms_and_biases = optim.decay_norms_and_biases,
                            .lora_b_rate = config.lora.loraplus_lr_ratio};
  const std::shared_ptr<const Rule> adamw =
      adamw_rule({.beta1 = optim.adam_beta1, .beta2 = optim.adam_beta2, .epsilon = optim.adam_epsilon});
  OptimizerOptions options{.groups = {}, .max_grad_norm = optim.max_grad_norm};
  OptimArgs args(optim);
  switch (optim.name) {
    case OptimizerName::kAdamw:
    case OptimizerName::kAdamw8bit:
      options.groups = groups_of(adamw, groups);
      break;
    case OptimizerName::kSgd:
      options.groups = groups_of(sgd_rule(read_sgd(args)), groups);
      break;
    case OptimizerName::kAdafactor:
      options.groups = groups_of(adafactor_rule(read_adafactor(args)), groups);
      break;
    case OptimizerName::kLion:
      options.groups = groups_of(lion_rule(read_lion(args, optim)), groups);
      break;
    case OptimizerName::kMuon:
      options.groups = muon_groups(muon_rule(read_muon(args)), adamw, groups);
      break;
  }
  args.done();
  return options;
}

}  // namespace hone
