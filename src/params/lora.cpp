#include "params/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "params/adapter_kind.h"
#include "params/adapter_targets.h"
#include "params/context_of.h"
#include "params/expert_parts.h"
#include "params/pattern.h"

namespace hone {

namespace {

/// Adds adapters to the weights of a store.
class Attaching {
 public:
  Attaching(ParameterStore& store, const LoraOptions& options)
      : store_(store),
        options_(options),
        kind_(adapter_kind(options)),
        ranks_(options.rank_pattern, "lora_rank_pattern"),
        alphas_(options.alpha_pattern, "lora_alpha_pattern") {}

  /// One adapter. `module` names the adapted module.
  void attach(Parameter& p, const std::string& module, const AdapterPlace& place) {
    const bool part = is_experts(p) && !place.shared;
    const AdapterNames names = adapter_names(p, part ? std::optional(place.out_begin) : std::nullopt);
    const auto rank = static_cast<int64_t>(ranks_.find(names).value_or(static_cast<double>(options_.r)));
    if (options_.largest_rank > 0 && rank > options_.largest_rank) {
      throw UserError(fmt::format("the adapter of '{}' has the rank {}, its files have {} at most", module, rank,
                                  options_.largest_rank),
                      "r, rank_pattern", "adapter_config.json does not belong to these weights: copy the folder again");
    }
    p.adapters().push_back(kind_.attach({.store = store_,
                                         .adapted = p,
                                         .kind = kind_,
                                         .options = options_,
                                         .place = place,
                                         .scale = {rank, alphas_.find(names).value_or(options_.alpha)},
                                         .module = module + options_.mark,
                                         .stream_id = ++stream_id_}));
  }

  void finish() const {
    if (options_.of_files) return;
    ranks_.require_all_used();
    alphas_.require_all_used();
  }

 private:
  ParameterStore& store_;
  const LoraOptions& options_;
  const AdapterKind& kind_;
  LoraPatterns ranks_, alphas_;
  uint32_t stream_id_ = 0;
};

/// The ops of experts and of the head support low-rank factors only.
void check_kind(const AdapterKind& kind, const AdapterTargets& targets) {
  const auto any = [&](ParameterKind of) {
    return std::any_of(targets.linear.begin(), targets.linear.end(),
                       [of](const Parameter* p) { return p->spec().kind == of; });
  };
  const char* what = targets.experts() && !kind.adapts_experts            ? "routed experts"
                     : any(ParameterKind::kHead) && !kind.adapts_head     ? "the head"
                     : any(ParameterKind::kRouter) && !kind.adapts_router ? "routers"
                                                                          : nullptr;
  if (what == nullptr) return;
  throw UserError(fmt::format("{} of {} is known, not in this version", kind.name, what), std::string(kind.key),
                  fmt::format("take {} out of lora_target_modules, or leave {} out", what, kind.key));
}

}  // namespace

double LoraOptions::scaling(double alpha_in_force, int64_t rank) const {
  return alpha_in_force / (use_rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

void attach_lora(ParameterStore& store, const LoraOptions& options) {
  const AdapterTargets targets = select_targets(store, options);
  if (!targets.fused_experts.empty() && options.dropout > 0) {
    throw UserError("LoRA dropout does not exist for shared expert adapters (PEFT target_parameters)", "lora_dropout",
                    "set lora_dropout: 0, or expert_lora: split");
  }
  check_kind(adapter_kind(options), targets);
  std::vector<Parameter*> base;
  for (Parameter& p : store.all()) {
    p.set_trainable(false);
    base.push_back(&p);
  }
  Attaching adapters(store, options);
  for (Parameter* p : base) {
    const std::string module(without_weight(p->name()));
    const std::string leaf = module.substr(module.rfind('.') + 1);
    if (targets.linear.contains(p)) adapters.attach(*p, module, {.target = leaf, .out_count = p->shape()[0]});
    if (targets.fused_experts.contains(p)) {
      adapters.attach(*p, module, {.target = "experts." + leaf, .out_count = p->shape()[1], .shared = true});
    }
    const auto parts = targets.expert_parts.find(p);
    if (parts == targets.expert_parts.end()) continue;
    const std::string experts = module.substr(0, module.rfind('.') + 1);
    for (const ExpertPart& part : parts_of(*p)) {
      if (!parts->second.contains(part.out_begin)) continue;
      adapters.attach(*p, experts + part.name,
                      {.target = part.name, .out_begin = part.out_begin, .out_count = part.out_count});
    }
  }
  adapters.finish();
}

void initialise_lora(const Context& context, ParameterStore& store, uint64_t seed, LoraInit init) {
  ContextOf context_of(context);
  for (const Parameter& p : store.all()) {
    for (const auto& attached : p.adapters()) {
      attached->initialise(context_of(p), p, seed, init);
      attached->initialise_identity(context_of(p));
    }
  }
  context_of.finish();
}

}  // namespace hone
