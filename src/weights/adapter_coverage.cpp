#include "weights/adapter_coverage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "params/expert_parts.h"
#include "params/lora_patterns.h"
#include "params/pattern.h"
#include "weights/adapter.h"
#include "weights/adapter_layout.h"

namespace hone {

namespace {

/// Names or ends of names that begin after a dot, or one expression for whole names.
class PeftNames {
 public:
  PeftNames(const Json& config, const char* key) {
    const Json said = config.value(key, Json());
    if (said.is_array()) {
      for (const Json& one : said) names_.insert(one.get<std::string>());
    } else if (said.is_string() && !said.empty()) {
      text_ = said.get<std::string>();
      expression_ = std::make_unique<Pattern>(whole_name_pattern(text_));
    }
  }

  bool empty() const { return names_.empty() && expression_ == nullptr; }
  const std::string& text() const { return text_; }
  const std::unordered_set<std::string>& names() const { return names_; }
  bool has_exactly(const std::string& name) const { return names_.contains(name); }
  bool matches(const std::string& name) const {
    if (expression_) return expression_->matches(name);
    if (names_.contains(name)) return true;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (names_.contains(name.substr(dot + 1))) return true;
    }
    return false;
  }

 private:
  std::unordered_set<std::string> names_;
  std::string text_;
  std::unique_ptr<Pattern> expression_;
};

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// layers_to_transform and layers_pattern, which count for a list of target_modules.
class PeftLayers {
 public:
  PeftLayers(const Json& config, const std::filesystem::path& path) {
    const Json said = config.value("layers_to_transform", Json()), list = said.is_array() ? said : Json::array({said});
    if (said.is_null()) return;
    for (const Json& one : list) {
      const std::optional<int64_t> layer = whole_number<int64_t>(one);
      if (!layer) {
        throw UserError("layers_to_transform of the adapter is neither a number nor a list of numbers", path.string(),
                        "correct the file");
      }
      layers_.insert(std::to_string(*layer));
    }
    const Json pattern = config.value("layers_pattern", Json());
    if (pattern.is_string() && !pattern.empty()) patterns_.push_back(pattern.get<std::string>());
    if (pattern.is_array()) patterns_ = pattern.get<std::vector<std::string>>();
  }

  bool have(const std::string& name) const { return layers_.empty() || layers_.contains(layer_of(name)); }

 private:
  /// The first number after one of the patterns, or after a part that is not the first; "" = none.
  std::string layer_of(const std::string& name) const {
    if (patterns_.empty()) {
      size_t begin = name.find('.');
      begin = begin == std::string::npos ? begin : name.find('.', begin + 1);
      return first_number(name, begin);
    }
    for (const std::string& pattern : patterns_) {
      const size_t at = ("." + name).find("." + pattern + ".");
      if (at == std::string::npos) continue;
      const size_t begin = at + pattern.size() + 1, end = name.find('.', begin);
      if (end != std::string::npos && is_number(name.substr(begin, end - begin)))
        return name.substr(begin, end - begin);
    }
    return "";
  }
  static std::string first_number(const std::string& name, size_t dot) {
    while (dot != std::string::npos) {
      const size_t end = name.find('.', dot + 1);
      if (end == std::string::npos) break;
      const std::string part = name.substr(dot + 1, end - dot - 1);
      if (is_number(part)) return part;
      dot = end;
    }
    return "";
  }

  std::set<std::string> layers_;
  std::vector<std::string> patterns_;
};

/// The targets of a configuration.
class PeftTargets {
 public:
  PeftTargets(const Json& config, const std::filesystem::path& path)
      : modules_(config, "target_modules"),
        parameters_(config, "target_parameters"),
        excluded_(config, "exclude_modules"),
        saved_(config, "modules_to_save"),
        layers_(config, path) {}

  /// None are stated: PEFT would choose by the architecture.
  bool none() const { return modules_.empty() && parameters_.empty(); }
  bool all_linear() const { return modules_.text() == "all-linear"; }
  const PeftNames& saved() const { return saved_; }

  bool module(const std::string& name) const {
    if (!excluded_.empty() && excluded_.matches(name)) return false;
    for (const std::string& saved : saved_.names()) {
      if (("." + name + ".").find("." + saved + ".") != std::string::npos) return false;
    }
    if (modules_.has_exactly(name)) return true;
    return !modules_.empty() && modules_.matches(name) && (!modules_.text().empty() || layers_.have(name));
  }
  bool parameter(const std::string& name) const { return !parameters_.empty() && parameters_.matches(name); }

 private:
  PeftNames modules_, parameters_, excluded_, saved_;
  PeftLayers layers_;
};

/// What a name of target_modules like gate_proj may mean beside what it is meant for.
enum class TargetGroup { kLinear, kDense, kExperts, kRouters };

/// A weight, or a part of experts' weights, that an adapter may adapt.
struct Adaptable {
  const Parameter* weight = nullptr;
  int64_t out_begin = 0;
  TargetGroup group = TargetGroup::kLinear;
  std::string name;                              ///< in messages
  std::string leaf;                              ///< its last part, or that of an expert's
  std::vector<std::string> modules, parameters;  ///< names by which target_modules and target_parameters may mean it
};

/// The names of a module in models with and without vision, of transformers 4 and 5.
void add_with_language_model(const std::string& name, std::vector<std::string>& names) {
  constexpr std::string_view kInside = "model.language_model.", kOwn = "model.";
  names.push_back(name);
  if (!name.starts_with(kOwn)) return;
  const std::string rest = name.substr(name.starts_with(kInside) ? kInside.size() : kOwn.size());
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model."}) {
    if (prefix + rest != name) names.push_back(prefix + rest);
  }
}

std::string without_end(const std::string& name, std::string_view end) {
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : name;
}

void add_adaptable_experts(const Parameter& p, std::vector<Adaptable>& all) {
  for (const ExpertPart& part : parts_of(p)) {
    Adaptable one{&p, part.out_begin, TargetGroup::kExperts, experts_module(p) + ".*." + part.name, part.name, {}, {}};
    const AdapterNames names = adapter_names(p, part.out_begin);
    // All experts of a layer are adapted or none; the two ends stand for them.
    for (const auto* expert : {&names.experts.front(), &names.experts.back()}) {
      for (const std::string& name : *expert) add_with_language_model(name, one.modules);
    }
    for (const std::string& name : names.whole) add_with_language_model(name, one.parameters);
    all.push_back(std::move(one));
  }
}

void add_adaptable(const Parameter& p, std::vector<Adaptable>& all) {
  TargetGroup group = TargetGroup::kLinear;
  switch (p.spec().kind) {
    case ParameterKind::kExpertsGateUp:
    case ParameterKind::kExpertsUp:
    case ParameterKind::kExpertsDown:
      return add_adaptable_experts(p, all);
    case ParameterKind::kMlp:
      group = TargetGroup::kDense;
      break;
    case ParameterKind::kRouter:
      group = TargetGroup::kRouters;
      break;
    case ParameterKind::kAttention:
    case ParameterKind::kAttentionGate:
    case ParameterKind::kHead:
      break;
    default:
      return;
  }
  constexpr std::string_view kWeight = ".weight";
  if (p.shape().rank() != 2 || !p.name().ends_with(kWeight)) return;
  const std::string module = without_end(p.name(), kWeight);
  Adaptable one{&p, 0, group, module, module.substr(module.rfind('.') + 1), {}, {}};
  for (const std::string& name : p.spec().all_names()) {
    add_with_language_model(without_end(name, kWeight), one.modules);
    add_with_language_model(name, one.parameters);
  }
  all.push_back(std::move(one));
}

std::string shown_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const size_t shown = std::min(names.size(), kShown);
  std::string text =
      fmt::format("'{}'", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), "', '"));
  return names.size() > kShown ? fmt::format("{} and {} more", text, names.size() - kShown) : text;
}

/// The comparison of targets and tensors.
class TargetComparison {
 public:
  TargetComparison(const PeftTargets& targets, const AdaptedWeights& adapted) : targets_(targets), adapted_(adapted) {}

  void add(const Adaptable& one) {
    const bool is_adapted = adapted_.parts.contains({one.weight, one.out_begin});
    if (one.group == TargetGroup::kExperts && adapted_.kt_experts) return;
    if (is_adapted) groups_with_tensors_.insert(one.group);
    const bool by_parameter = matches(one.parameters, [&](const std::string& n) { return targets_.parameter(n); });
    const bool by_module = matches(one.modules, [&](const std::string& n) { return targets_.module(n); });
    if (is_adapted && !by_parameter && !by_module) outside_.push_back(one.name);
    if (is_adapted || (!by_parameter && !by_module)) return;
    (by_parameter ? missing_ : missing_by_module_[one.group]).push_back(one.name);
  }

  std::vector<std::string> finish(const std::filesystem::path& path) {
    std::vector<std::string> warnings;
    for (auto& [group, names] : missing_by_module_) {
      if (is_another_meaning(group)) {
        warnings.push_back(fmt::format(
            "target_modules of {} name {} too, and its file has no tensors of any of them: they are not adapted",
            path.string(), shown_names(names)));
      } else {
        missing_.insert(missing_.end(), names.begin(), names.end());
      }
    }
    if (!missing_.empty()) {
      throw UserError(
          fmt::format("the adapter's targets include {}, and its file has no tensors of {}: it is not whole",
                      shown_names(missing_), missing_.size() == 1 ? "it" : "them"),
          path.string(),
          "copy the adapter again; if it is meant to be so, correct target_modules, target_parameters or "
          "layers_to_transform in a copy of the file");
    }
    if (!outside_.empty()) {
      throw UserError(
          fmt::format("the adapter's file has tensors of {}, which its targets do not include: PEFT ignores them",
                      shown_names(outside_)),
          path.string(),
          "adapter_config.json belongs to other weights, or add the names to target_modules in a copy of it");
    }
    return warnings;
  }

 private:
  template <class Test>
  static bool matches(const std::vector<std::string>& names, const Test& test) {
    return std::any_of(names.begin(), names.end(), test);
  }
  /// transformers 5 has neither experts nor routers as modules, and the names of experts' projections are also those of
  /// dense ones.
  bool is_another_meaning(TargetGroup group) const {
    if (group == TargetGroup::kLinear || groups_with_tensors_.contains(group)) return false;
    const bool experts = groups_with_tensors_.contains(TargetGroup::kExperts) || adapted_.kt_experts;
    return group != TargetGroup::kDense || experts;
  }

  const PeftTargets& targets_;
  const AdaptedWeights& adapted_;
  std::set<TargetGroup> groups_with_tensors_;
  std::vector<std::string> missing_, outside_;
  std::map<TargetGroup, std::vector<std::string>> missing_by_module_;
};

/// all-linear means other modules in each version of PEFT: what is adapted in one layer must be in all.
void compare_layers(const std::vector<Adaptable>& all, const std::filesystem::path& path,
                    const AdaptedWeights& adapted) {
  const auto kind_of = [](const Adaptable& one) { return std::pair(one.group, one.leaf); };
  std::set<std::pair<TargetGroup, std::string>> some;
  std::vector<std::string> missing;
  for (const Adaptable& one : all) {
    if (adapted.parts.contains({one.weight, one.out_begin})) some.insert(kind_of(one));
  }
  for (const Adaptable& one : all) {
    if (some.contains(kind_of(one)) && !adapted.parts.contains({one.weight, one.out_begin}))
      missing.push_back(one.name);
  }
  if (missing.empty()) return;
  throw UserError(fmt::format("the adapter's file has no tensors of {}, and of the same in other layers it has them",
                              shown_names(missing)),
                  path.string(), "copy the adapter again; target_modules is all-linear, which means every layer");
}

/// The weights that modules_to_save names.
void compare_saved(const PeftNames& saved, const std::filesystem::path& path, const ParameterStore& store,
                   const AdaptedWeights& adapted) {
  if (saved.empty()) return;
  const std::set<std::string>& whole = adapted.whole;
  std::vector<std::string> missing;
  for (const Parameter& p : store.all()) {
    if (!can_be_saved_whole(p.spec().kind) || !p.name().ends_with(".weight")) continue;
    for (const std::string& name : whole_names(store, p)) {
      std::vector<std::string> modules;
      add_with_language_model(without_end(name, ".weight"), modules);
      const bool named = std::any_of(modules.begin(), modules.end(), [&](const auto& m) { return saved.matches(m); });
      if (named && !whole.contains(name)) missing.push_back(without_end(name, ".weight"));
    }
  }
  if (missing.empty()) return;
  throw UserError(fmt::format("modules_to_save of the adapter includes {}, whose weights its file does not have",
                              shown_names(missing)),
                  path.string(), "copy the adapter again, or take the names out of a copy of the file");
}

}  // namespace

std::vector<std::string> compare_targets(const Json& config, const std::filesystem::path& path,
                                         const ParameterStore& store, const AdaptedWeights& adapted) {
  const PeftTargets targets(config, path);
  compare_saved(targets.saved(), path, store, adapted);
  if (targets.none()) return {};
  std::vector<Adaptable> all;
  for (const Parameter& p : store.all()) add_adaptable(p, all);
  if (targets.all_linear()) {
    compare_layers(all, path, adapted);
    return {};
  }
  TargetComparison coverage(targets, adapted);
  for (const Adaptable& one : all) coverage.add(one);
  return coverage.finish(path);
}

}  // namespace hone
