#include "config/alias_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "config/config_value.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/text/untrusted_json.h"
#include "params/pattern.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

Rewritten says(const ConfigNode& place, const std::string& text) {
  return text.empty() ? Rewritten{place, Emphasis::kNothing} : Rewritten{ConfigNode::scalar(text, place.where)};
}

bool is_switch(const ConfigNode& node, bool& value) {
  return node.kind == Kind::kScalar && parse_bool(node.text, value);
}

/// Whether a value is null, false, "" or an empty list.
bool is_off(const ConfigNode& node) {
  bool value = true;
  return node.kind == Kind::kNull || (node.kind == Kind::kScalar && node.text.empty()) ||
         (node.kind == Kind::kSequence && node.items.empty()) || (is_switch(node, value) && !value);
}

/// Returns an invalid value of a switch unchanged, so that the later type check refuses it.
Rewritten not_a_switch(const ConfigNode& node) { return Rewritten{node}; }

}  // namespace

Rewrite when_true(std::string value) { return either(std::move(value), ""); }

Rewrite either(std::string yes, std::string no, Emphasis of_no) {
  const auto rule = [=](const ConfigNode& node) {
    bool on = false;
    if (node.kind == Kind::kNull) return says(node, "");
    if (!is_switch(node, on)) return not_a_switch(node);
    Rewritten result = says(node, on ? yes : no);
    if (!on && result.emphasis == Emphasis::kPlain) result.emphasis = of_no;
    return result;
  };
  return {rule, true};
}

Rewrite weakly(Rewrite rule) {
  const bool of_switch = rule.of_switch();
  return {[rule = std::move(rule)](const ConfigNode& node) {
            Rewritten result = rule(node);
            if (result.emphasis == Emphasis::kPlain) result.emphasis = Emphasis::kWeak;
            return result;
          },
          of_switch};
}

Rewrite negated() { return either("false", "true"); }

Rewrite mapped(std::map<std::string, std::string> table) {
  return [table = std::move(table)](const ConfigNode& node) {
    if (node.kind == Kind::kNull) return says(node, "");
    const auto found = node.kind == Kind::kScalar ? table.find(in_lower_case(node.text)) : table.end();
    return found == table.end() ? Rewritten{node} : says(node, found->second);
  };
}

Rewrite stated_by(std::map<std::string, std::string> table) {
  return [table = std::move(table)](const ConfigNode& node) {
    const auto found = node.kind == Kind::kScalar ? table.find(in_lower_case(node.text)) : table.end();
    return says(node, found == table.end() ? "" : found->second);
  };
}

Rewrite skips_lora_of_experts() {
  return [](const ConfigNode& node) {
    const bool skips = node.kind == Kind::kScalar && in_lower_case(node.text).ends_with("_skiplora");
    return says(node, skips ? "all-experts" : "");
  };
}

Rewrite true_means(std::string value) {
  return [=](const ConfigNode& node) {
    bool on = false;
    if (is_off(node)) return says(node, "");
    return is_switch(node, on) ? says(node, value) : Rewritten{node};
  };
}

Rewrite prefixed(std::string before) {
  return [=](const ConfigNode& node) {
    Rewritten result{node};
    if (node.kind == Kind::kScalar) result.value.text = before + node.text;
    for (ConfigNode& item : result.value.items) item.text = before + item.text;
    return result;
  };
}

Rewrite modules_of_peft() {
  return [](const ConfigNode& node) {
    Rewritten result{node};
    const std::string& text = node.text;
    const bool expression =
        text.find_first_of("\\()[]^$|+{}") != std::string::npos || text.find(".*") != std::string::npos;
    const bool other = text.starts_with("re:") || text.starts_with("*");  // a glob
    if (node.kind == Kind::kScalar && expression && !other) {
      result.value.text = whole_name_pattern(text);
    }
    return result;
  };
}

namespace {

/// Whether an expression of Axolotl ends in a range of rows: [:32000], [5:], [7].
bool has_range_of_rows(const std::string& expression) {
  const size_t begin = expression.rfind('[');
  if (begin == std::string::npos || begin == 0 || !expression.ends_with(']')) return false;
  const std::string inside = expression.substr(begin + 1, expression.size() - begin - 2);
  return inside.find_first_not_of("0123456789:") == std::string::npos &&
         std::count(inside.begin(), inside.end(), ':') <= 1;
}

ConfigNode pattern_of_axolotl(const ConfigNode& node) {
  if (has_range_of_rows(node.text)) {
    throw UserError(fmt::format("'{}' trains a range of rows; a parameter is trained whole", node.text), node.where,
                    "leave the range out, which trains all of its rows, or train in the other tool");
  }
  std::string expression;
  for (size_t i = 0; i < node.text.size(); ++i) {
    const bool literal = node.text[i] == '.' && (i + 1 == node.text.size() || node.text[i + 1] != '+');
    expression += literal ? "\\." : std::string(1, node.text[i]);
  }
  return ConfigNode::scalar("re:^(?:" + expression + ")", node.where);
}

}  // namespace

Rewrite patterns_of_axolotl() {
  return [](const ConfigNode& node) {
    if (is_off(node)) return says(node, "");
    Rewritten result{node};
    result.value.kind = Kind::kSequence;
    result.value.items.clear();
    if (node.kind == Kind::kScalar) result.value.items.push_back(pattern_of_axolotl(node));
    for (const ConfigNode& item : node.items) result.value.items.push_back(pattern_of_axolotl(item));
    return result;
  };
}

Rewrite any_means(std::string value) {
  return [=](const ConfigNode& node) { return says(node, is_off(node) ? "" : value); };
}

Rewrite member_of(std::string name) {
  return [=](const ConfigNode& node) {
    Rewritten result;
    result.value.kind = Kind::kMapping;
    result.value.where = node.where;
    result.value.members.emplace_back(name, node);
    return result;
  };
}

Rewrite switch_of(Rewrite rule) {
  return {[rule = std::move(rule)](const ConfigNode& node) { return rule(node); }, true};
}

Rewrite pairs_as_mapping() {
  return [](const ConfigNode& node) {
    if (node.kind != Kind::kScalar || node.text.find('=') == std::string::npos) return Rewritten{node};
    Rewritten result;
    result.value.kind = Kind::kMapping;
    result.value.where = node.where;
    std::string text = node.text;
    std::erase(text, ' ');
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      const std::string pair = text.substr(begin, end - begin);
      const size_t equals = std::min(pair.find('='), pair.size());
      const std::string value = equals < pair.size() ? pair.substr(equals + 1) : "";
      result.value.members.emplace_back(pair.substr(0, equals), ConfigNode::scalar(value, node.where));
      begin = end + 1;
    }
    return result;
  };
}

Rewrite roles_to_train() {
  return [](const ConfigNode& node) {
    const ConfigNode* only = &node;
    if (node.kind == Kind::kSequence && node.items.size() == 1) only = &node.items[0];
    const bool assistant = only->kind == Kind::kScalar && (only->text == "assistant" || only->text == "gpt");
    return assistant ? says(node, "assistant") : Rewritten{ConfigNode::scalar(shown(node), node.where)};
  };
}

namespace {

/// zero_optimization of a DeepSpeed file; nullopt if the value is not the path of an existing file.
std::optional<Json> zero_of_deepspeed_file(const ConfigNode& node) {
  if (node.kind != Kind::kScalar || !node.text.ends_with(".json")) return std::nullopt;
  const std::optional<Json> json = read_json_if_there(node.text);
  if (!json) return std::nullopt;
  if (!json->is_object()) {
    throw UserError("the file is not a JSON object", node.text, "fix the file, or set zero_stage");
  }
  Json zero = json->value("zero_optimization", Json::object());
  if (!zero.is_object()) throw UserError("zero_optimization is not a mapping", node.text, "set zero_stage instead");
  return zero;
}

std::optional<std::string> deepspeed_file_stage(const ConfigNode& node) {
  const std::optional<Json> zero = zero_of_deepspeed_file(node);
  if (!zero) return std::nullopt;
  const Json stage = zero->value("stage", Json(0));
  if (!stage.is_number_integer())
    throw UserError("zero_optimization.stage is not a number", node.text, "state zero_stage");
  return stage.dump();
}

/// Whether a DeepSpeed file's zero_optimization offloads `part` to host memory.
bool is_offloaded(const Json& zero, const char* part, const ConfigNode& node) {
  const Json offload = zero.value(part, Json::object());
  const Json device = offload.is_object() ? offload.value("device", Json("none")) : Json("none");
  if (device == "none") return false;
  if (device == "cpu") return true;
  throw UserError(fmt::format("{} to {} is known, not in this version", part, device.dump()), node.text,
                  "write cpu in the file, or take it out");
}

/// States a list of these names; states nothing if there are none.
Rewritten says_list(const ConfigNode& place, const std::vector<std::string>& names) {
  if (names.empty()) return says(place, "");
  Rewritten list{place};
  list.value.kind = Kind::kSequence;
  list.value.items.clear();
  for (const std::string& name : names) list.value.items.push_back(says(place, name).value);
  return list;
}

}  // namespace

Rewrite deepspeed_stage() {
  return [](const ConfigNode& node) {
    if (is_off(node)) return says(node, "");
    if (const std::optional<std::string> stage = deepspeed_file_stage(node)) return says(node, *stage);
    const std::string text = node.kind == Kind::kScalar ? in_lower_case(node.text) : "";
    const std::string name = text.substr(text.find_last_of('/') + 1);
    for (const char* prefix : {"zero", "z", "stage"}) {
      const size_t at = name.rfind(prefix);
      const size_t digit = at == std::string::npos ? at : at + std::string_view(prefix).size();
      const size_t skip = digit < name.size() && (name[digit] == '_' || name[digit] == '-') ? digit + 1 : digit;
      if (skip < name.size() && name[skip] >= '0' && name[skip] <= '3') return says(node, std::string(1, name[skip]));
    }
    if (text.ends_with(".json")) {
      throw UserError(fmt::format("the DeepSpeed file {} is not there", node.text), node.where,
                      "correct its path, or set zero_stage instead");
    }
    return Rewritten{node};
  };
}

Rewrite deepspeed_offload() {
  return [](const ConfigNode& node) {
    if (is_off(node)) return says(node, "");
    std::vector<std::string> names;
    if (const std::optional<Json> zero = zero_of_deepspeed_file(node)) {
      if (is_offloaded(*zero, "offload_optimizer", node)) names.emplace_back("optimizer");
      if (is_offloaded(*zero, "offload_param", node)) names.emplace_back("params");
      return says_list(node, names);
    }
    const std::string text = node.kind == Kind::kScalar ? in_lower_case(node.text) : "";
    if (text.substr(text.find_last_of('/') + 1).find("offload") == std::string::npos) return says(node, "");
    names.emplace_back("optimizer");
    if (deepspeed_stage()(node).value.text == "3") names.emplace_back("params");
    return says_list(node, names);
  };
}

Rewrite deepspeed_shard_size() {
  return [](const ConfigNode& node) {
    const std::optional<Json> zero = zero_of_deepspeed_file(node);
    if (!zero) return says(node, "");
    if (const Json hpz = zero->value("zero_hpz_partition_size", Json(1)); hpz != 1) {
      throw UserError(fmt::format("zero_hpz_partition_size {} is known, not in this version", hpz.dump()), node.text,
                      "take it out of the file; dp_shard_size: N keeps weights, gradients and states in groups of N");
    }
    const Json size = zero->value("mics_shard_size", Json(-1));
    return says(node, size == -1 ? "" : size.dump());
  };
}

namespace {

/// A way in which FSDP shards.
struct FsdpStrategy {
  const char* name;
  const char* number;  ///< in torch's enumeration
  const char* stage;
  bool hybrid;
};
constexpr FsdpStrategy kFsdpStrategies[] = {
    // a name that contains another one comes first
    {"hybrid_shard_zero2", "5", "2", true}, {"hybrid_shard", "4", "3", true}, {"full_shard", "1", "3", false},
    {"shard_grad_op", "2", "2", false},     {"no_shard", "3", "0", false},
};

/// The strategy that a text names; null if it names none.
const FsdpStrategy* fsdp_strategy_in(const std::string& text) {
  for (const FsdpStrategy& strategy : kFsdpStrategies) {
    if (in_lower_case(text).find(strategy.name) != std::string::npos) return &strategy;
  }
  return nullptr;
}

Rewritten weak(Rewritten result) {
  if (result.emphasis == Emphasis::kPlain) result.emphasis = Emphasis::kWeak;
  return result;
}

Rewritten shard_group_of(const ConfigNode& place, const FsdpStrategy* strategy) {
  return weak(says(place, strategy != nullptr && strategy->hybrid ? "host" : ""));
}

}  // namespace

Rewrite fsdp_offload() {
  return [](const ConfigNode& node) {
    const bool offloads = shown(node).find("offload") != std::string::npos;
    return says_list(node, offloads ? std::vector<std::string>{"optimizer", "params"} : std::vector<std::string>{});
  };
}

Rewrite fsdp_stage() {
  return [](const ConfigNode& node) {
    if (is_off(node)) return says(node, "");
    bool on = false;
    if (is_switch(node, on)) return weak(says(node, "3"));
    const FsdpStrategy* strategy = fsdp_strategy_in(shown(node));
    return strategy != nullptr ? says(node, strategy->stage) : Rewritten{node};
  };
}

Rewrite fsdp_shard_size() {
  return [](const ConfigNode& node) { return shard_group_of(node, fsdp_strategy_in(shown(node))); };
}

namespace {

using FsdpMembers = std::map<std::string, ConfigNode>;

/// Members of fsdp_config that affect where data is and when it moves, but not the results of training.
constexpr const char* kFsdpWithoutEffect[] = {"auto_wrap_policy",
                                              "transformer_layer_cls_to_wrap",
                                              "transformer_cls_names_to_wrap",
                                              "min_num_params",
                                              "backward_prefetch",
                                              "backward_prefetch_policy",
                                              "forward_prefetch",
                                              "limit_all_gathers",
                                              "use_orig_params",
                                              "sync_module_states",
                                              "cpu_ram_efficient_loading",
                                              "cpu_offload_pin_memory",
                                              "state_dict_type",
                                              "final_state_dict_type",
                                              "mixed_precision",
                                              "mixed_precision_policy",
                                              "enabled",
                                              "xla",
                                              "xla_fsdp_v2",
                                              "xla_fsdp_settings",
                                              "xla_fsdp_grad_ckpt"};
constexpr const char* kFsdpWithEffect[] = {"sharding_strategy",     "reshard_after_forward", "version",
                                           "offload_params",        "cpu_offload",           "activation_checkpointing",
                                           "activation_cpu_offload"};

void check_fsdp_member(const std::string& name, const ConfigNode& value) {
  std::vector<std::string> known(std::begin(kFsdpWithEffect), std::end(kFsdpWithEffect));
  known.insert(known.end(), std::begin(kFsdpWithoutEffect), std::end(kFsdpWithoutEffect));
  if (std::find(known.begin(), known.end(), name) != known.end() || is_off(value)) return;
  if (name == "ignored_modules") {
    throw UserError(fmt::format("fsdp_config: {}: {} is known, not in this version", name, shown(value)), value.where,
                    "remove it: the gradients of all trained weights are summed; freeze_parameters freezes some");
  }
  throw UserError(fmt::format("fsdp_config has no member '{}'.{}", name, did_you_mean(name, known)), value.where,
                  "docs/distributed.md lists its members");
}

/// The members by their names without fsdp_, of a mapping or of the file that has it. Other values have none.
FsdpMembers fsdp_members(const ConfigNode& node) {
  const bool is_file = node.kind == Kind::kScalar && node.text.ends_with(".json");
  if (!is_file && node.kind != Kind::kMapping) return {};
  FsdpMembers members;
  for (const auto& [raw, value] : (is_file ? read_config_file(node.text) : node).members) {
    std::string name = config_name(raw);
    if (name.starts_with("fsdp_")) name = name.substr(std::string_view("fsdp_").size());
    check_fsdp_member(name, value);
    const auto [other, is_first] = members.emplace(name, value);
    if (is_first || shown(other->second) == shown(value)) continue;
    throw UserError(fmt::format("{} is stated twice, as {} ({}) and {}", name, shown(other->second),
                                other->second.where, shown(value)),
                    value.where, "keep one of them");
  }
  return members;
}

const ConfigNode* member(const FsdpMembers& members, const char* name) {
  const auto found = members.find(name);
  return found == members.end() || found->second.kind == Kind::kNull ? nullptr : &found->second;
}

bool is_on(const FsdpMembers& members, const char* name) {
  const ConfigNode* value = member(members, name);
  bool on = false;
  if (value == nullptr || is_off(*value)) return false;
  if (!is_switch(*value, on)) {
    throw UserError(fmt::format("{} is {}", name, shown(*value)), value->where, "write true or false");
  }
  return on;
}

/// The strategy that a member names, which may be the number of one; null if it is not stated.
const FsdpStrategy* fsdp_strategy_of(const ConfigNode* value) {
  if (value == nullptr) return nullptr;
  const std::string text = shown(*value);
  for (const FsdpStrategy& strategy : kFsdpStrategies) {
    if (text == strategy.number || fsdp_strategy_in(text) == &strategy) return &strategy;
  }
  throw UserError(fmt::format("'{}' is not a way to shard", text), value->where,
                  "write FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2; or set zero_stage");
}

/// FSDP 2: whether weights leave after forward. FSDP 1: a strategy.
const FsdpStrategy* fsdp_resharding_of(const ConfigNode* value) {
  bool leaves = false;
  if (value == nullptr || !is_switch(*value, leaves)) return fsdp_strategy_of(value);
  return fsdp_strategy_in(leaves ? "full_shard" : "shard_grad_op");
}

}  // namespace

Rewrite fsdp_config_stage() {
  return [](const ConfigNode& node) {
    if (is_off(node)) return says(node, "");
    const FsdpMembers members = fsdp_members(node);
    const bool is_known = node.kind == Kind::kMapping || node.text.ends_with(".json");
    if (!is_known) {
      throw UserError(fmt::format("fsdp_config is '{}'", shown(node)), node.where,
                      "write a mapping, or the path of a JSON file");
    }
    const ConfigNode *stated = member(members, "sharding_strategy"),
                     *resharding = member(members, "reshard_after_forward");
    const FsdpStrategy *strategy = fsdp_strategy_of(stated), *other = fsdp_resharding_of(resharding);
    if (strategy != nullptr && other != nullptr && std::string_view(strategy->stage) != other->stage) {
      throw UserError(fmt::format("sharding_strategy {} ({}) and reshard_after_forward {} do not agree", shown(*stated),
                                  stated->where, shown(*resharding)),
                      resharding->where, "keep one of them");
    }
    if (strategy == nullptr) strategy = other;
    if (strategy != nullptr) return says(node, strategy->stage);
    const ConfigNode* version = member(members, "version");
    return weak(says(node, version != nullptr && version->text == "2" ? "3" : ""));
  };
}

Rewrite fsdp_config_offload() {
  return [](const ConfigNode& node) {
    const FsdpMembers members = fsdp_members(node);
    std::vector<std::string> names;
    if (is_on(members, "offload_params") || is_on(members, "cpu_offload")) names = {"optimizer", "params"};
    if (is_on(members, "activation_cpu_offload")) names.emplace_back("activations");
    return says_list(node, names);
  };
}

Rewrite fsdp_config_shard_size() {
  return [](const ConfigNode& node) {
    const FsdpMembers members = fsdp_members(node);
    const FsdpStrategy* strategy = fsdp_strategy_of(member(members, "sharding_strategy"));
    if (strategy == nullptr) strategy = fsdp_resharding_of(member(members, "reshard_after_forward"));
    return shard_group_of(node, strategy);
  };
}

Rewrite fsdp_config_checkpointing() {
  return [](const ConfigNode& node) {
    return weak(says(node, is_on(fsdp_members(node), "activation_checkpointing") ? "true" : ""));
  };
}

Rewrite words_as_list() {
  return [](const ConfigNode& node) {
    if (node.kind != Kind::kScalar) return Rewritten{node};
    std::string text = node.text;
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c == ',' || c == '+'; }, ' ');
    std::istringstream words(text);
    return says_list(node, {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()});
  };
}

Rewrite off_means_zero() { return either("", "0", Emphasis::kDecisive); }

Rewrite list_means(std::string value) {
  return [=](const ConfigNode& node) {
    return node.kind == Kind::kSequence && !node.items.empty() ? says(node, value) : Rewritten{node};
  };
}

Rewrite only_item() {
  return [](const ConfigNode& node) {
    return Rewritten{node.kind == Kind::kSequence && node.items.size() == 1 ? node.items[0] : node};
  };
}

Rewrite rest_of_one() {
  return [](const ConfigNode& node) {
    double share = 0;
    if (node.kind != Kind::kScalar || !parse_number(node.text, share) || share <= 0 || share > 1)
      return Rewritten{node};
    Rewritten result = says(node, fmt::format("{:.6g}", 1 - share));
    result.emphasis = Emphasis::kWeak;
    return result;
  };
}

Rewrite entry_member(std::string name) {
  return [=](const ConfigNode& node) {
    if (node.kind == Kind::kNull) return says(node, "");
    Rewritten result = member_of(name)(node);
    const FoundKey found = find_key(dataset_schema(), "", name);
    const std::optional<Json> value = parse_value(*found.key, node, name);
    // Numbers and switches become text, as a file would have them.
    if (value && !value->is_array()) result.value.members.front().value.text = value->dump();
    return result;
  };
}

Rewrite entry_of_type(std::string type) {
  return [=](const ConfigNode& node) {
    if (node.kind != Kind::kScalar) return Rewritten{node};
    Rewritten result = member_of("path")(node);
    result.value.members.emplace_back("type", ConfigNode::scalar(type, node.where));
    return result;
  };
}

Rewrite decisive(std::string value) {
  return {[rule = when_true(std::move(value))](const ConfigNode& node) {
            Rewritten result = rule(node);
            if (result.emphasis == Emphasis::kPlain) result.emphasis = Emphasis::kDecisive;
            return result;
          },
          true};
}

}  // namespace hone
