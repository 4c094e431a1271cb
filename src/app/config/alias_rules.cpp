#include "app/config/alias_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <sstream>

#include "app/config/config_value.h"
#include "core/error.h"
#include "core/untrusted_json.h"
#include "params/pattern.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

ConfigNode scalar_at(const ConfigNode& place, std::string text) {
  ConfigNode node;
  node.kind = Kind::kScalar;
  node.text = std::move(text);
  node.where = place.where;
  return node;
}

Rewritten says(const ConfigNode& place, const std::string& text) {
  return text.empty() ? Rewritten{place, Emphasis::kNothing} : Rewritten{scalar_at(place, text)};
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
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
    const auto found = node.kind == Kind::kScalar ? table.find(lower(node.text)) : table.end();
    return found == table.end() ? Rewritten{node} : says(node, found->second);
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
      result.value.members.emplace_back(pair.substr(0, equals), scalar_at(node, value));
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
    return assistant ? says(node, "assistant") : Rewritten{scalar_at(node, shown(node))};
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
    const std::string text = node.kind == Kind::kScalar ? lower(node.text) : "";
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
    const std::string text = node.kind == Kind::kScalar ? lower(node.text) : "";
    if (text.substr(text.find_last_of('/') + 1).find("offload") == std::string::npos) return says(node, "");
    names.emplace_back("optimizer");
    if (deepspeed_stage()(node).value.text == "3") names.emplace_back("params");
    return says_list(node, names);
  };
}

Rewrite fsdp_offload() {
  return [](const ConfigNode& node) {
    const bool offloads = shown(node).find("offload") != std::string::npos;
    return says_list(node, offloads ? std::vector<std::string>{"optimizer", "params"} : std::vector<std::string>{});
  };
}

Rewrite fsdp_stage() {
  return [](const ConfigNode& node) {
    if (is_off(node)) return says(node, "");
    const std::string text = shown(node);
    if (text.find("hybrid_shard") != std::string::npos) {
      throw UserError(fmt::format("'fsdp: {}' is known, not in this version", text), node.where,
                      "write zero_stage: 3, which shards over all ranks");
    }
    if (text.find("full_shard") != std::string::npos) return says(node, "3");
    if (text.find("shard_grad_op") != std::string::npos) return says(node, "2");
    return text == "no_shard" ? says(node, "0") : Rewritten{node};
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
    result.value.members.emplace_back("type", scalar_at(node, type));
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
