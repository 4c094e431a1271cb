#include "params/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "ops/cast/cast.h"
#include "ops/dora/dora.h"
#include "ops/random_fill/random_fill.h"
#include "params/expert_parts.h"
#include "params/random_weights.h"

namespace hone {

namespace {

bool is_linear(const Parameter& p) {
  switch (p.kind()) {
    case ParameterKind::kAttention:
    case ParameterKind::kAttentionGate:
    case ParameterKind::kMlp:
    case ParameterKind::kHead:
      return true;
    default:
      return false;
  }
}

/// What the targets select: whole linear weights, parts of expert weights (by out_begin), fused expert weights.
struct Selection {
  std::set<Parameter*> linear;
  std::map<Parameter*, std::set<int64_t>> expert_parts;
  std::set<Parameter*> fused_experts;
};

void select_whole_experts(Parameter& p, const LoraOptions& options, Selection& selection) {
  if (options.expert_lora == ExpertLora::kShared) {
    selection.fused_experts.insert(&p);
  } else {
    for (const ExpertPart& part : parts_of(p)) selection.expert_parts[&p].insert(part.out_begin);
  }
}

/// Selects the parts of an expert weight whose file tensors (one per expert) all match; some but not all is refused.
bool select_expert_parts(Parameter& p, const Pattern& pattern, const LoraOptions& options, Selection& selection) {
  if (pattern.matches(p.name())) {
    select_whole_experts(p, options, selection);
    return true;
  }
  std::set<int64_t> parts;
  const int64_t per_expert = p.shape()[1] * p.shape()[2];
  std::vector<FileLayout> layouts = p.layouts();
  if (!has_expert_files(p)) layouts.push_back(separate_experts(p));
  for (const FileLayout& layout : layouts) {
    std::map<int64_t, int64_t> matched;  // out_begin -> experts
    for (const FileTensor& tensor : layout) {
      if (!pattern.matches(tensor.name)) continue;
      if (tensor.shape == p.shape()) {
        select_whole_experts(p, options, selection);
        return true;
      }
      ++matched[tensor.offset % per_expert / p.shape()[2]];
    }
    for (const auto& [out_begin, experts] : matched) {
      if (experts != p.shape()[0]) {
        throw UserError(fmt::format("LoRA target '{}' matches {} of the {} experts of '{}'", pattern.text(), experts,
                                    p.shape()[0], p.name()),
                        "lora_target_modules", "all experts of a layer are adapted together: match all of them");
      }
      parts.insert(out_begin);
    }
  }
  if (parts.empty()) return false;
  if (options.expert_lora == ExpertLora::kShared) {
    if (static_cast<size_t>(parts.size()) != parts_of(p).size()) {
      throw UserError(fmt::format("LoRA target '{}' matches only a part of '{}'", pattern.text(), p.name()),
                      "lora_target_modules",
                      "expert_lora: shared adapts the fused gate_up; target gate and up, or use split");
    }
    selection.fused_experts.insert(&p);
  } else {
    selection.expert_parts[&p].insert(parts.begin(), parts.end());
  }
  return true;
}

bool select_named(Parameter& p, const Pattern& pattern, const LoraOptions& options, Selection& selection) {
  if (is_experts(p)) return select_expert_parts(p, pattern, options, selection);
  const auto names = p.names();
  if (!std::any_of(names.begin(), names.end(), [&](const std::string& n) { return pattern.matches(n); })) return false;
  if (!is_linear(p)) return false;
  selection.linear.insert(&p);
  return true;
}

bool in_layers(const Parameter& p, const std::vector<int64_t>& layers) {
  return layers.empty() || std::find(layers.begin(), layers.end(), p.layer()) != layers.end();
}

/// Offers every parameter of the layers in question to `take`. UserError with near names if it takes none.
void each(ParameterStore& store, const LoraOptions& options, const std::string& target, const std::string& key,
          const std::function<bool(Parameter&)>& take) {
  bool any = false;
  for (Parameter& p : store.all()) any |= in_layers(p, options.layers) && take(p);
  if (any) return;
  std::set<std::string> names = {"attention", "all-linear", "all-experts"};
  for (const Parameter& p : store.all()) {
    if (!is_linear(p) && !is_experts(p)) continue;
    const std::string module = p.name().substr(0, p.name().size() - (p.name().ends_with(".weight") ? 7 : 0));
    names.insert(module.substr(module.rfind('.') + 1));
  }
  throw UserError(
      fmt::format("LoRA target '{}' matches no linear weight or expert of {}.{}", target,
                  options.layers.empty() ? "this model" : "the layers in lora_layers", did_you_mean(target, names)),
      key, "use attention, all-linear, all-experts, a name, a glob or re:…; `hone inspect MODEL` lists the names");
}

/// What modules written as target_modules select.
void select_modules(ParameterStore& store, const LoraOptions& options, const std::vector<std::string>& modules,
                    const std::string& key, Selection& selection) {
  for (const std::string& target : modules) {
    const Pattern pattern(target);
    each(store, options, target, key, [&](Parameter& p) {
      const bool attention = p.kind() == ParameterKind::kAttention, mlp = p.kind() == ParameterKind::kMlp;
      if (target == "attention" || target == "all-linear") {
        const bool gate = p.kind() == ParameterKind::kAttentionGate;
        if (!(attention || ((mlp || gate) && target == "all-linear"))) return false;
        selection.linear.insert(&p);
        return true;
      }
      if (target == "all-experts") {
        if (!is_experts(p)) return false;
        select_whole_experts(p, options, selection);
        return true;
      }
      return select_named(p, pattern, options, selection);
    });
  }
}

void exclude(ParameterStore& store, const LoraOptions& options, Selection& selection) {
  if (options.exclude_modules.empty()) return;
  Selection excluded;
  select_modules(store, options, options.exclude_modules, "lora_exclude_modules", excluded);
  for (Parameter* p : excluded.linear) selection.linear.erase(p);
  for (Parameter* p : excluded.fused_experts) selection.fused_experts.erase(p);
  for (const auto& [p, parts] : excluded.expert_parts) {
    const auto found = selection.expert_parts.find(p);
    if (found == selection.expert_parts.end()) continue;
    for (const int64_t part : parts) found->second.erase(part);
    if (found->second.empty()) selection.expert_parts.erase(found);
  }
  if (!selection.linear.empty() || !selection.expert_parts.empty() || !selection.fused_experts.empty()) return;
  throw UserError("lora_exclude_modules leaves no module with an adapter", "lora_exclude_modules",
                  "take some of them out, or name more in lora_target_modules");
}

Selection select_targets(ParameterStore& store, const LoraOptions& options) {
  Selection selection;
  select_modules(store, options, options.target_modules, "lora_target_modules", selection);
  for (const std::string& target : options.target_parameters) {
    const Pattern pattern(target);
    each(store, options, target, "lora_target_parameters", [&](Parameter& p) {
      if (!is_experts(p) || !pattern.matches(p.name())) return false;
      selection.expert_parts.erase(&p);
      selection.fused_experts.insert(&p);
      return true;
    });
  }
  exclude(store, options, selection);
  return selection;
}

std::string module_of(const Parameter& p) {
  return p.name().ends_with(".weight") ? p.name().substr(0, p.name().size() - 7) : p.name();
}

/// Adds adapters to the weights of a store.
class Attaching {
 public:
  Attaching(ParameterStore& store, const LoraOptions& options)
      : store_(store),
        options_(options),
        ranks_(options.rank_pattern, "lora_rank_pattern"),
        alphas_(options.alpha_pattern, "lora_alpha_pattern") {}

  /// One A and B. `module` names the adapted module, suffix what follows lora_A and lora_B.
  void attach(Parameter& p, const std::string& module, const std::string& suffix, AttachedAdapter attached) {
    const bool experts = is_experts(p), part = experts && !attached.shared;
    const AdapterNames names = adapter_names(p, part ? std::optional(attached.out_begin) : std::nullopt);
    const auto rank = static_cast<int64_t>(ranks_.find(names).value_or(static_cast<double>(options_.r)));
    attached.alpha = alphas_.find(names).value_or(options_.alpha);
    if (options_.largest_rank > 0 && rank > options_.largest_rank) {
      throw UserError(fmt::format("the adapter of '{}' has the rank {}, its files have {} at most", module, rank,
                                  options_.largest_rank),
                      "r, rank_pattern", "adapter_config.json does not belong to these weights: copy the folder again");
    }
    const auto shape = [&](int64_t rows, int64_t columns) {
      return experts ? Shape{p.shape()[0], rows, columns} : Shape{rows, columns};
    };
    Parameter& a = add(module + ".lora_A" + suffix, p, shape(rank, p.shape()[-1]));
    Parameter& b = add(module + ".lora_B" + suffix, p, shape(attached.out_count, rank));
    attached.adapter = {.lora_a = &a,
                        .lora_b = &b,
                        .scaling = static_cast<float>(options_.scaling(attached.alpha, rank)),
                        .dropout = static_cast<float>(options_.dropout),
                        .stream_id = ++stream_id_};
    if (options_.use_dora) {
      attached.adapter.magnitude = &add(module + ".lora_magnitude_vector", p, {attached.out_count});
    }
    p.adapters().push_back(std::move(attached));
  }

  void finish() const {
    if (options_.patterns_may_miss) return;
    ranks_.require_all_used();
    alphas_.require_all_used();
  }

 private:
  /// A parameter of an adapter of `adapted`.
  Parameter& add(const std::string& name, const Parameter& adapted, const Shape& shape) {
    Parameter& added = store_.add({name, shape, ParameterKind::kLora, adapted.layer(), {}}, DType::kF32);
    added.set_group(adapted.group());
    return added;
  }

  ParameterStore& store_;
  const LoraOptions& options_;
  LoraPatterns ranks_, alphas_;
  uint32_t stream_id_ = 0;
};

/// Experts and the head are multiplied by ops that know no magnitudes.
void check_dora(const Selection& selection) {
  const bool experts = !selection.expert_parts.empty() || !selection.fused_experts.empty();
  const bool head = std::any_of(selection.linear.begin(), selection.linear.end(),
                                [](const Parameter* p) { return p->kind() == ParameterKind::kHead; });
  if (!experts && !head) return;
  throw UserError(
      fmt::format("DoRA of {} is known, not in this version", experts ? "routed experts" : "the head"), "use_dora",
      fmt::format("take {} out of lora_target_modules, or leave use_dora out", experts ? "the experts" : "the head"));
}

void check_layers(const ParameterStore& store, const std::vector<int64_t>& layers) {
  int64_t count = 0;
  for (const Parameter& p : store.all()) count = std::max<int64_t>(count, p.layer() + 1);
  for (const int64_t layer : layers) {
    if (layer >= 0 && layer < count) continue;
    throw UserError(fmt::format("the model has no layer {}: they are numbered from 0 to {}", layer, count - 1),
                    "lora_layers");
  }
}

}  // namespace

double LoraOptions::scaling(double alpha_in_force, int64_t rank) const {
  return alpha_in_force / (use_rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

void attach_lora(ParameterStore& store, const LoraOptions& options) {
  check_layers(store, options.layers);
  const Selection selection = select_targets(store, options);
  if (!selection.fused_experts.empty() && options.dropout > 0) {
    throw UserError("LoRA dropout does not exist for shared expert adapters (PEFT target_parameters)", "lora_dropout",
                    "set lora_dropout: 0, or expert_lora: split");
  }
  if (options.use_dora) check_dora(selection);
  std::vector<Parameter*> base;
  for (Parameter& p : store.all()) {
    p.set_trainable(false);
    base.push_back(&p);
  }
  Attaching adapters(store, options);
  for (Parameter* p : base) {
    const std::string module = module_of(*p);
    const std::string leaf = module.substr(module.rfind('.') + 1);
    if (selection.linear.contains(p)) {
      adapters.attach(*p, module, ".weight", {.target = leaf, .out_count = p->shape()[0]});
    }
    if (selection.fused_experts.contains(p)) {
      adapters.attach(*p, module, "", {.target = "experts." + leaf, .out_count = p->shape()[1], .shared = true});
    }
    const auto parts = selection.expert_parts.find(p);
    if (parts == selection.expert_parts.end()) continue;
    const std::string experts = module.substr(0, module.rfind('.') + 1);
    for (const ExpertPart& part : parts_of(*p)) {
      if (!parts->second.contains(part.out_begin)) continue;
      adapters.attach(*p, experts + part.name, "",
                      {.target = part.name, .out_begin = part.out_begin, .out_count = part.out_count});
    }
  }
  adapters.finish();
}

void initialise_lora(const Context& context, ParameterStore& store, uint64_t seed, LoraInit init) {
  const auto fill = [&](Parameter& p, Distribution distribution, float scale) {
    fill_stored(context, p, [&](const Tensor& values) {
      random_fill(context,
                  {.dst = values, .distribution = distribution, .scale = scale, .key = random_key(seed, p.name())});
    });
  };
  const auto kaiming = [](const Parameter& p) { return std::sqrt(1.0f / static_cast<float>(p.shape()[-1])); };
  for (Parameter& p : store.all()) {
    for (const AttachedAdapter& attached : p.adapters()) {
      auto& a = *static_cast<Parameter*>(attached.adapter.lora_a);
      auto& b = *static_cast<Parameter*>(attached.adapter.lora_b);
      if (init == LoraInit::kGaussian) {
        fill(a, Distribution::kNormal, 1.0f / static_cast<float>(a.shape()[-2]));
      } else {
        fill(a, Distribution::kUniform, kaiming(a));
      }
      if (init == LoraInit::kRandom) {
        fill(b, Distribution::kUniform, kaiming(b));
      } else {
        fill_stored(context, b, [&](const Tensor& values) { fill_zero(context, values); });
      }
      if (attached.adapter.magnitude == nullptr) continue;
      dora_norm(context, {.w = p.view(),
                          .shape = p.shape(),
                          .lora_a = a.value(),
                          .lora_b = b.value(),
                          .scaling = attached.adapter.scaling,
                          .norms = static_cast<Parameter*>(attached.adapter.magnitude)->value()});
    }
  }
}

}  // namespace hone
