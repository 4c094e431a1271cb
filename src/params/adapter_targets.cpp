#include "params/adapter_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/base/error.h"
#include "params/expert_parts.h"

namespace hone {

namespace {

constexpr const char* kExcludeKey = "lora_exclude_modules";

/// An entry of the key, in messages.
const char* what(const std::string& key) { return key == kExcludeKey ? "the excluded module" : "LoRA target"; }

bool is_linear(const Parameter& p) {
  switch (p.spec().kind) {
    case ParameterKind::kAttention:
    case ParameterKind::kAttentionGate:
    case ParameterKind::kMlp:
    case ParameterKind::kHead:
      return true;
    default:
      return false;
  }
}

/// The weight of a router, not its bias.
bool is_router(const Parameter& p) { return p.spec().kind == ParameterKind::kRouter && p.shape().rank() == 2; }

/// Whether a pattern is a name or the end of one, not a glob or an expression.
bool is_plain(const Pattern& pattern) {
  return !pattern.text().starts_with("re:") && pattern.text().find_first_of("*?[") == std::string::npos;
}

void select_whole_experts(Parameter& p, const LoraOptions& options, AdapterTargets& targets) {
  if (options.expert_lora == ExpertLora::kShared) {
    targets.fused_experts.insert(&p);
  } else {
    for (const ExpertPart& part : parts_of(p)) targets.expert_parts[&p].insert(part.out_begin);
  }
}

/// Selects the parts of an expert weight whose file tensors (one per expert) all match; some but not all is refused.
bool select_expert_parts(Parameter& p, const Pattern& pattern, const std::string& key, const LoraOptions& options,
                         AdapterTargets& targets) {
  if (pattern.matches(p.name())) {
    select_whole_experts(p, options, targets);
    return true;
  }
  std::set<int64_t> parts;
  const int64_t per_expert = p.shape()[1] * p.shape()[2];
  std::vector<FileLayout> layouts = p.spec().all_layouts();
  if (!has_expert_files(p)) layouts.push_back(separate_experts(p));
  for (const FileLayout& layout : layouts) {
    std::map<int64_t, int64_t> matched;  // out_begin -> experts
    for (const FileTensor& tensor : layout) {
      if (!pattern.matches(tensor.name)) continue;
      if (tensor.shape == p.shape()) {
        select_whole_experts(p, options, targets);
        return true;
      }
      ++matched[tensor.offset % per_expert / p.shape()[2]];
    }
    for (const auto& [out_begin, experts] : matched) {
      if (experts != p.shape()[0]) {
        throw UserError(fmt::format("{} '{}' matches {} of the {} experts of '{}'", what(key), pattern.text(), experts,
                                    p.shape()[0], p.name()),
                        key, "all experts of a layer are adapted together: match all of them");
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
    targets.fused_experts.insert(&p);
  } else {
    targets.expert_parts[&p].insert(parts.begin(), parts.end());
  }
  return true;
}

bool names_match(const Parameter& p, const Pattern& pattern) {
  const auto names = p.spec().all_names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return pattern.matches(name); });
}

bool select_named(Parameter& p, const Pattern& pattern, const std::string& key, const LoraOptions& options,
                  AdapterTargets& targets) {
  if (is_experts(p)) return select_expert_parts(p, pattern, key, options, targets);
  // A router is adapted where it is named, not where an expression for many modules happens to match it.
  if (!(is_linear(p) || (is_router(p) && is_plain(pattern))) || !names_match(p, pattern)) return false;
  targets.linear.insert(&p);
  return true;
}

bool in_layers(const Parameter& p, const std::vector<int64_t>& layers) {
  return layers.empty() || std::find(layers.begin(), layers.end(), p.spec().layer) != layers.end();
}

/// " Did you mean 'q_proj'?" for a target that matches nothing; "" if no name is near.
std::string near_targets(const ParameterStore& store, const std::string& target) {
  std::set<std::string> names = {"attention", "all-linear", "all-experts"};
  for (const Parameter& p : store.all()) {
    if (!is_linear(p) && !is_experts(p)) continue;
    const std::string module = p.name().substr(0, p.name().size() - (p.name().ends_with(".weight") ? 7 : 0));
    names.insert(module.substr(module.rfind('.') + 1));
  }
  return did_you_mean(target, names);
}

/// Offers every parameter of the layers in question to `take`. UserError with near names if it takes none.
void each(ParameterStore& store, const LoraOptions& options, const std::string& target, const std::string& key,
          const std::function<bool(Parameter&)>& take) {
  bool any = false;
  for (Parameter& p : store.all()) any |= in_layers(p, options.layers) && take(p);
  if (any) return;
  throw UserError(
      fmt::format("{} '{}' matches no linear weight or expert of {}.{}", what(key), target,
                  options.layers.empty() ? "this model" : "the layers in lora_layers", near_targets(store, target)),
      key, "use attention, all-linear, all-experts, a name, a glob or re:…; `hone inspect MODEL` lists the names");
}

/// Selects what one entry of a list like target_modules names. Whether it names the parameter.
bool select_entry(Parameter& p, const Pattern& pattern, const LoraOptions& options, const std::string& key,
                  AdapterTargets& targets) {
  const std::string& target = pattern.text();
  const bool attention = p.spec().kind == ParameterKind::kAttention, mlp = p.spec().kind == ParameterKind::kMlp;
  if (target == "attention" || target == "all-linear") {
    const bool gate = p.spec().kind == ParameterKind::kAttentionGate;
    if (!(attention || ((mlp || gate) && target == "all-linear"))) return false;
    targets.linear.insert(&p);
    return true;
  }
  if (target == "all-experts") {
    if (!is_experts(p)) return false;
    select_whole_experts(p, options, targets);
    return true;
  }
  const bool selected = select_named(p, pattern, key, options, targets);
  // A norm, for example, never has an adapter.
  return selected || (key == kExcludeKey && names_match(p, pattern));
}

/// The selection of a list like target_modules.
void select_modules(ParameterStore& store, const LoraOptions& options, const std::vector<std::string>& modules,
                    const std::string& key, AdapterTargets& targets) {
  for (const std::string& target : modules) {
    const Pattern pattern(target);
    each(store, options, target, key, [&](Parameter& p) { return select_entry(p, pattern, options, key, targets); });
  }
}

/// Removes the excluded parts of experts. A fused adapter covers all of its weight or nothing.
void exclude_experts(const AdapterTargets& excluded, AdapterTargets& targets) {
  for (const auto& [p, parts] : excluded.expert_parts) {
    if (targets.fused_experts.contains(p)) {
      if (parts.size() < parts_of(*p).size()) {
        throw UserError(fmt::format("only a part of '{}' is excluded, but it has a single adapter", p->name()),
                        kExcludeKey, "exclude gate and up, or leave it out in lora_target_parameters");
      }
      targets.fused_experts.erase(p);
    }
    const auto found = targets.expert_parts.find(p);
    if (found == targets.expert_parts.end()) continue;
    for (const int64_t part : parts) found->second.erase(part);
    if (found->second.empty()) targets.expert_parts.erase(found);
  }
}

void exclude(ParameterStore& store, const LoraOptions& options, AdapterTargets& targets) {
  if (options.exclude_modules.empty()) return;
  LoraOptions by_part = options;
  by_part.expert_lora = ExpertLora::kSplit;
  std::vector<std::string> modules = options.exclude_modules;
  if (options.exclusions_may_miss) {
    for (const Unmatched& missed : unmatched_exclusions(store, options)) std::erase(modules, missed.entry);
  }
  AdapterTargets excluded;
  select_modules(store, by_part, modules, kExcludeKey, excluded);
  for (Parameter* p : excluded.linear) targets.linear.erase(p);
  exclude_experts(excluded, targets);
  if (!targets.empty()) return;
  throw UserError("lora_exclude_modules leaves no module with an adapter", kExcludeKey,
                  "take some of them out, or name more in lora_target_modules");
}

void check_layers(const ParameterStore& store, const std::vector<int64_t>& layers) {
  int64_t count = 0;
  for (const Parameter& p : store.all()) count = std::max<int64_t>(count, p.spec().layer + 1);
  for (const int64_t layer : layers) {
    if (layer >= 0 && layer < count) continue;
    throw UserError(fmt::format("the model has no layer {}: they are numbered from 0 to {}", layer, count - 1),
                    "lora_layers");
  }
}

}  // namespace

std::vector<Unmatched> unmatched_exclusions(ParameterStore& store, const LoraOptions& options) {
  LoraOptions by_part = options;
  by_part.expert_lora = ExpertLora::kSplit;
  std::vector<Unmatched> unmatched;
  for (const std::string& entry : options.exclude_modules) {
    const Pattern pattern(entry);
    AdapterTargets ignored;
    const bool any = std::any_of(store.all().begin(), store.all().end(), [&](Parameter& p) {
      return in_layers(p, options.layers) && select_entry(p, pattern, by_part, kExcludeKey, ignored);
    });
    if (!any) unmatched.push_back({entry, near_targets(store, entry)});
  }
  return unmatched;
}

AdapterTargets select_targets(ParameterStore& store, const LoraOptions& options) {
  check_layers(store, options.layers);
  AdapterTargets targets;
  select_modules(store, options, options.target_modules, "lora_target_modules", targets);
  for (const std::string& target : options.target_parameters) {
    const Pattern pattern(target);
    each(store, options, target, "lora_target_parameters", [&](Parameter& p) {
      if (is_router(p) && names_match(p, pattern)) {
        targets.linear.insert(&p);
        return true;
      }
      if (!is_experts(p) || !pattern.matches(p.name())) return false;
      targets.expert_parts.erase(&p);
      targets.fused_experts.insert(&p);
      return true;
    });
  }
  if (!options.of_files) exclude(store, options, targets);
  return targets;
}

}  // namespace hone
