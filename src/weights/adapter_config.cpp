#include "weights/adapter_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/text/json.h"
#include "params/adapter_kind.h"
#include "params/expert_parts.h"
#include "params/pattern.h"
#include "weights/adapter_layout.h"

namespace hone {
namespace {

constexpr const char* kKey = "exclude_modules";

bool is_group(const std::string& pattern) {
  return pattern == "attention" || pattern == "all-linear" || pattern == "all-experts";
}

bool is_name(const std::string& pattern) {
  return !is_group(pattern) && !pattern.starts_with("re:") && pattern.find_first_of("*?[") == std::string::npos;
}

std::string escaped(const std::string& name) {
  std::string expression;
  for (const char c : name) {
    if (std::string_view(".\\+()^$|{}*?[]").find(c) != std::string_view::npos) expression += '\\';
    expression += c;
  }
  return expression;
}

/// Converts a glob, in which ! negates brackets, to a regular expression.
std::string expression_of_glob(const std::string& glob) {
  std::string expression;
  for (size_t i = 0; i < glob.size(); ++i) {
    const size_t end = glob[i] == '[' ? glob.find(']', i + 2) : std::string::npos;
    if (end != std::string::npos) {
      std::string set = glob.substr(i, end + 1 - i);
      if (set[1] == '!') set[1] = '^';
      expression += set;
      i = end;
    } else {
      expression += glob[i] == '*' ? ".*" : glob[i] == '?' ? "." : escaped({glob[i]});
    }
  }
  return expression;
}

/// A regular expression for the modules that a group word selects.
std::string expression_of_group(const ParameterStore& store, const std::string& word) {
  std::vector<std::string> names;
  for (const Parameter& p : store.all()) {
    const ParameterKind kind = p.spec().kind;
    if (word == "all-experts") {
      if (kind == ParameterKind::kExpertsDown) names.push_back(escaped(experts_module(p)) + "(\\..*)?");
    } else if (kind == ParameterKind::kAttention ||
               (word == "all-linear" && (kind == ParameterKind::kMlp || kind == ParameterKind::kAttentionGate))) {
      names.push_back(escaped(std::string(without_weight(p.name()))));
    }
  }
  return fmt::format("{}", fmt::join(names, "|"));
}

/// A regular expression that matches full names.
std::string expression_of(const ParameterStore& store, const std::string& pattern) {
  if (is_group(pattern)) return expression_of_group(store, pattern);
  if (const auto whole = whole_name_expression_of(pattern)) return *whole;
  if (pattern.starts_with("re:")) return fmt::format(".*(?:{}).*", pattern.substr(3));
  const std::string name(without_weight(pattern));
  return is_name(name) ? "(.*\\.)?" + escaped(name) : expression_of_glob(name);
}

}  // namespace

Json excluded_as_peft(const ParameterStore& store, const std::vector<std::string>& patterns) {
  if (std::all_of(patterns.begin(), patterns.end(), is_name)) return patterns;
  std::vector<std::string> expressions;
  for (const std::string& pattern : patterns) expressions.push_back(expression_of(store, pattern));
  if (expressions.size() == 1) return expressions.front();
  return fmt::format("(?:{})", fmt::join(expressions, ")|(?:"));
}

std::vector<std::string> excluded_of_peft(const Json& config, const std::filesystem::path& path) {
  if (!config.contains(kKey) || config[kKey].is_null()) return {};
  const Json& said = config[kKey];
  if (said == "") return {};
  if (said.is_string()) return {whole_name_pattern(said.get<std::string>())};
  const bool texts =
      said.is_array() && std::all_of(said.begin(), said.end(), [](const Json& one) { return one.is_string(); });
  if (!texts) {
    throw UserError(fmt::format("{} of the adapter is neither a list of names nor an expression", kKey), path.string(),
                    "correct the file");
  }
  return said.get<std::vector<std::string>>();
}

namespace {

std::string module_of(const Parameter& p) { return std::string(without_weight(p.name())); }

std::string leaf_of(const std::string& module) { return module.substr(module.rfind('.') + 1); }

/// The last `count` parts of a name.
std::string last_parts(const std::string& name, int count) {
  size_t dot = name.size();
  for (int i = 0; i < count && dot != std::string::npos && dot > 0; ++i) dot = name.rfind('.', dot - 1);
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

/// An adapter with its names in the config.
struct Named {
  std::string leaf;   ///< "q_proj", "experts.gate_up_proj", "mlp.gate.weight", "w1"
  std::string whole;  ///< the module; for an expert, a regular expression for all experts
  const Parameter* adapted;
  AdapterScale scale;
  bool parameter = false;              ///< one of PEFT's target_parameters
  std::vector<std::string> each = {};  ///< the modules of every expert
};

/// Adds the modules of an expert adapter: two if a shared gate_up is written as gate and up.
void add_split_experts(const Parameter& p, const AdapterPlace& place, const AdapterScale& scale, ExpertNaming names,
                       std::vector<Named>& all) {
  const ExpertKeys keys(p, names);
  for (const ExpertPart& part : parts_of(p)) {
    if (!place.shared && place.out_begin != part.out_begin) continue;
    std::string first = keys.module(0, part.out_begin);
    if (first.starts_with(kAdapterKeyPrefix)) first.erase(0, std::string_view(kAdapterKeyPrefix).size());
    const size_t leaf = first.rfind('.'), number = first.rfind('.', leaf - 1);
    Named named{first.substr(leaf + 1), first.substr(0, number) + "\\.\\d+" + first.substr(leaf), &p, scale};
    for (int64_t e = 0; e < p.shape()[0]; ++e) {
      named.each.push_back(fmt::format("{}.{}{}", first.substr(0, number), e, first.substr(leaf)));
    }
    all.push_back(std::move(named));
  }
}

std::vector<Named> named_adapters(const ParameterStore& store, const AdapterFiles& files) {
  const ExpertNaming names = is_for_servers(files.layout()) ? ExpertNaming::kServing : ExpertNaming::kFile;
  std::vector<Named> all;
  for (const Parameter& p : store.all()) {
    for (const auto& attached : p.adapters()) {
      const AdapterScale scale = files.scale(p, *attached);
      if (p.spec().kind == ParameterKind::kRouter) {
        // transformers 5 has no module for a router's product.
        all.push_back({last_parts(p.name(), 3), p.name(), &p, scale, true});
      } else if (!is_experts(p)) {
        all.push_back({attached->place().target, module_of(p), &p, scale});
      } else if (files.fuses(*attached)) {
        all.push_back({"experts." + leaf_of(p.name()), p.name(), &p, scale, true});
        break;  // a single adapter in the file
      } else {
        add_split_experts(p, attached->place(), scale, names, all);
      }
    }
  }
  return all;
}

/// Values that differ from `usual`: by last part if all modules with that part agree, else by full name.
Json pattern_of(const std::vector<Named>& adapters, double usual, const std::function<double(const Named&)>& value_of) {
  std::map<std::string, std::set<double>> values;
  for (const Named& named : adapters) values[named.leaf].insert(value_of(named));
  Json pattern = Json::object();
  for (const Named& named : adapters) {
    const double value = value_of(named);
    if (value == usual) continue;
    const std::string& key = values[named.leaf].size() == 1 ? named.leaf : named.whole;
    pattern[key] = value == std::floor(value) ? Json(static_cast<int64_t>(value)) : Json(value);
  }
  return pattern;
}

/// Coverage of layers by adapters, to decide whether last parts of names select the same modules.
struct Coverage {
  std::set<int> adapted_layers;
  bool every_layer = true;   ///< no layer without adapters has such modules
  bool whole_layers = true;  ///< every such module of the layers with adapters has one

  bool in_some_layers() const { return whole_layers && !every_layer && !adapted_layers.contains(-1); }
};

Coverage coverage_of(const ParameterStore& store, const std::vector<Named>& adapters) {
  Coverage coverage;
  std::set<std::string> leaves;
  std::set<ParameterKind> kinds;  // the kinds of experts and routers
  for (const Named& named : adapters) {
    coverage.adapted_layers.insert(named.adapted->spec().layer);
    if (named.parameter || !named.each.empty())
      kinds.insert(named.adapted->spec().kind);
    else
      leaves.insert(named.leaf);
  }
  for (const Parameter& p : store.all()) {
    const bool by_kind = is_experts(p) || (p.spec().kind == ParameterKind::kRouter && p.shape().rank() == 2);
    const bool meant = by_kind ? kinds.contains(p.spec().kind)
                               : p.spec().kind != ParameterKind::kLora && leaves.contains(leaf_of(module_of(p)));
    if (!meant || !p.adapters().empty()) continue;
    (coverage.adapted_layers.contains(p.spec().layer) ? coverage.whole_layers : coverage.every_layer) = false;
  }
  return coverage;
}

Json null_if_empty(const std::set<std::string>& names) { return names.empty() ? Json(nullptr) : Json(names); }

/// Leaves of experts' projections that are also those of dense weights without an adapter (of a shared expert), and of
/// dense weights that are also those of experts without one.
std::set<std::string> ambiguous_leaves(const ParameterStore& store, const std::vector<Named>& adapters) {
  std::set<std::string> of_experts, of_others, ambiguous;
  for (const Named& named : adapters) (named.each.empty() ? of_others : of_experts).insert(named.leaf);
  for (const Parameter& p : store.all()) {
    if (!p.adapters().empty() || p.spec().kind == ParameterKind::kLora) continue;
    if (!is_experts(p)) {
      if (of_experts.contains(leaf_of(module_of(p)))) ambiguous.insert(leaf_of(module_of(p)));
      continue;
    }
    const ExpertKeys files(p, ExpertNaming::kFile);
    for (const ExpertPart& part : parts_of(p)) {
      for (const std::string& leaf : {part.name, files.leaf(part.out_begin)}) {
        if (of_others.contains(leaf)) ambiguous.insert(leaf);
      }
    }
  }
  return ambiguous;
}

/// Whether a module is of a text model inside a larger model, whose other parts may have modules of the same last part
/// (those of Gemma 4's vision tower are of a class that PEFT cannot adapt).
bool in_larger_model(const Named& named) {
  return named.adapted->spec().layer >= 0 && !named.whole.starts_with("model.layers.");
}

/// `for_servers`: they know modules by the last parts of their names alone.
void set_targets(const ParameterStore& store, const std::vector<Named>& adapters, bool for_servers, Json& config) {
  const Coverage coverage = coverage_of(store, adapters);
  const bool all = coverage.every_layer && coverage.whole_layers, layers = coverage.in_some_layers();
  const std::set<std::string> ambiguous = for_servers ? std::set<std::string>() : ambiguous_leaves(store, adapters);
  std::set<std::string> modules, parameters;
  for (const Named& named : adapters) {
    const bool by_leaf = all || layers;
    if (named.parameter) {
      parameters.insert(all ? named.leaf : named.whole);  // PEFT applies these to every layer
    } else if (named.each.empty()) {
      const bool whole = !by_leaf || (!for_servers && in_larger_model(named));
      modules.insert(whole ? named.whole : ambiguous.contains(named.leaf) ? last_parts(named.whole, 2) : named.leaf);
    } else if (for_servers || (by_leaf && !ambiguous.contains(named.leaf))) {
      modules.insert(named.leaf);
    } else {
      for (const std::string& module : named.each) modules.insert(by_leaf ? last_parts(module, 3) : module);
    }
  }
  config["target_modules"] = modules;
  config["target_parameters"] = null_if_empty(parameters);
  config["layers_to_transform"] = layers ? Json(coverage.adapted_layers) : Json(nullptr);
  config["layers_pattern"] = layers ? Json::array({"layers"}) : Json(nullptr);
}

/// The name for modules_to_save. PEFT matches any suffix, not only after a dot, and "gate" and "norm" are suffixes of
/// other names, too.
std::string saved_name(ParameterKind kind, const std::string& module) {
  const size_t leaf = module.rfind('.');
  if (kind == ParameterKind::kNorm || leaf == std::string::npos) return module;
  return module.substr((kind == ParameterKind::kRouter ? module.rfind('.', leaf - 1) : leaf) + 1);
}

std::set<std::string> saved_whole(const ParameterStore& store) {
  std::set<std::string> saved;
  for (const Parameter& p : store.all()) {
    if (!p.trainable() || !can_be_saved_whole(p.spec().kind)) continue;
    for (const std::string& name : whole_names(store, p))
      saved.insert(saved_name(p.spec().kind, name.substr(0, name.rfind('.'))));
  }
  return saved;
}

Json init_of(LoraInit init) {
  return init == LoraInit::kGaussian ? Json("gaussian") : Json(init == LoraInit::kKaiming);
}

}  // namespace

Json adapter_config(const ParameterStore& store, const AdapterFiles& files, const LoraOptions& lora,
                    const std::string& base_model) {
  const std::vector<Named> adapters = named_adapters(store, files);
  const bool doubled = files.doubles_ranks();
  const int64_t r = doubled ? 2 * lora.r : lora.r;
  const double growth = doubled ? (lora.use_rslora ? std::sqrt(2.0) : 2.0) : 1.0, alpha = lora.alpha * growth;
  Json config = Json::object();
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = base_model.empty() ? Json(nullptr) : Json(base_model);
  config["peft_version"] = "0.21.0";  // version of the layout of target_parameters in this file
  config["r"] = r;
  config["lora_alpha"] = alpha;
  config["rank_pattern"] =
      pattern_of(adapters, static_cast<double>(r), [](const Named& n) { return static_cast<double>(n.scale.rank); });
  config["alpha_pattern"] = pattern_of(adapters, alpha, [](const Named& n) { return n.scale.alpha; });
  for (const AdapterKind& kind : adapter_kinds()) kind.describe(lora, config);
  config["init_lora_weights"] = init_of(lora.init);
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  set_targets(store, adapters, is_for_servers(files.layout()), config);
  // PEFT has no dropout of target_parameters, and refuses to load one.
  config["lora_dropout"] = config["target_parameters"].is_null() ? lora.dropout : 0.0;
  config["modules_to_save"] = null_if_empty(saved_whole(store));
  if (!lora.exclude_modules.empty()) config["exclude_modules"] = excluded_as_peft(store, lora.exclude_modules);
  if (is_for_servers(files.layout()) && lora.use_rslora) {
    config["use_rslora"] = false;
    config["lora_alpha"] = lora.alpha * std::sqrt(static_cast<double>(lora.r));
  }
  return config;
}

}  // namespace hone
