#include "params/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "ops/cast/cast.h"
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

Selection select_targets(ParameterStore& store, const LoraOptions& options) {
  Selection selection;
  const auto each = [&](const std::string& target, const std::string& key,
                        const std::function<bool(Parameter&)>& take) {
    bool any = false;
    for (Parameter& p : store.all()) any |= take(p);
    if (any) return;
    std::set<std::string> names = {"attention", "all-linear", "all-experts"};
    for (const Parameter& p : store.all()) {
      if (!is_linear(p) && !is_experts(p)) continue;
      const std::string module = p.name().substr(0, p.name().size() - (p.name().ends_with(".weight") ? 7 : 0));
      names.insert(module.substr(module.rfind('.') + 1));
    }
    throw UserError(
        fmt::format("LoRA target '{}' matches no linear weight or expert of this model.{}", target,
                    did_you_mean(target, names)),
        key, "use attention, all-linear, all-experts, a name, a glob or re:…; `hone inspect MODEL` lists the names");
  };
  for (const std::string& target : options.target_modules) {
    const Pattern pattern(target);
    each(target, "lora_target_modules", [&](Parameter& p) {
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
  for (const std::string& target : options.target_parameters) {
    const Pattern pattern(target);
    each(target, "lora_target_parameters", [&](Parameter& p) {
      if (!is_experts(p) || !pattern.matches(p.name())) return false;
      selection.expert_parts.erase(&p);
      selection.fused_experts.insert(&p);
      return true;
    });
  }
  return selection;
}

std::string module_of(const Parameter& p) {
  return p.name().ends_with(".weight") ? p.name().substr(0, p.name().size() - 7) : p.name();
}

/// Adds one A and B to a weight. `module` names the adapted module, suffix what follows lora_A and lora_B.
void attach(ParameterStore& store, Parameter& p, const LoraOptions& options, const std::string& module,
            const std::string& suffix, AttachedAdapter attached, uint32_t stream_id) {
  const bool experts = is_experts(p);
  const int64_t in = p.shape()[-1];
  const auto shape = [&](int64_t rows, int64_t columns) {
    return experts ? Shape{p.shape()[0], rows, columns} : Shape{rows, columns};
  };
  Parameter& a =
      store.add({module + ".lora_A" + suffix, shape(options.r, in), ParameterKind::kLora, p.layer(), {}}, DType::kF32);
  Parameter& b = store.add(
      {module + ".lora_B" + suffix, shape(attached.out_count, options.r), ParameterKind::kLora, p.layer(), {}},
      DType::kF32);
  attached.adapter = {&a, &b, static_cast<float>(options.scaling()), static_cast<float>(options.dropout), stream_id};
  p.adapters().push_back(std::move(attached));
}

}  // namespace

double LoraOptions::scaling() const {
  return alpha / (use_rslora ? std::sqrt(static_cast<double>(r)) : static_cast<double>(r));
}

void attach_lora(ParameterStore& store, const LoraOptions& options) {
  const Selection selection = select_targets(store, options);
  if (!selection.fused_experts.empty() && options.dropout > 0) {
    throw UserError("LoRA dropout does not exist for shared expert adapters (PEFT target_parameters)", "lora_dropout",
                    "set lora_dropout: 0, or expert_lora: split");
  }
  std::vector<Parameter*> base;
  for (Parameter& p : store.all()) {
    p.set_trainable(false);
    base.push_back(&p);
  }
  uint32_t stream_id = 0;
  for (Parameter* p : base) {
    const std::string module = module_of(*p);
    const std::string leaf = module.substr(module.rfind('.') + 1);
    if (selection.linear.contains(p)) {
      attach(store, *p, options, module, ".weight", {{}, leaf, 0, p->shape()[0], false}, ++stream_id);
    }
    if (selection.fused_experts.contains(p)) {
      attach(store, *p, options, module, "", {{}, "experts." + leaf, 0, p->shape()[1], true}, ++stream_id);
    }
    const auto parts = selection.expert_parts.find(p);
    if (parts == selection.expert_parts.end()) continue;
    const std::string experts = module.substr(0, module.rfind('.') + 1);
    for (const ExpertPart& part : parts_of(*p)) {
      if (!parts->second.contains(part.out_begin)) continue;
      attach(store, *p, options, experts + part.name, "", {{}, part.name, part.out_begin, part.out_count, false},
             ++stream_id);
    }
  }
}

void initialise_lora(const Context& context, ParameterStore& store, uint64_t seed) {
  for (Parameter& p : store.all()) {
    for (const AttachedAdapter& attached : p.adapters()) {
      const auto& a = *static_cast<Parameter*>(attached.adapter.lora_a);
      const auto& b = *static_cast<Parameter*>(attached.adapter.lora_b);
      random_fill(context, {.dst = a.value(),
                            .distribution = Distribution::kUniform,
                            .scale = std::sqrt(1.0f / static_cast<float>(a.shape()[-1])),
                            .key = random_key(seed, a.name())});
      fill_zero(context, b.value());
    }
  }
}

}  // namespace hone
