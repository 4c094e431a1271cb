#include "config/tools/tool.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "config/alias_rules.h"
#include "core/base/error.h"

namespace hone {
namespace {

constexpr std::string_view kMarks = "=@~-?!";

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

/// The rule `second`, applied to the result of `first`.
Rewrite after(const Rewrite& first, const Rewrite& second) {
  return [=](const ConfigNode& node) { return second(first(node).value); };
}

/// Reads a rule's meaning: "key", "key.member", "key: value" or "key {a: b, c: d}".
void read_meaning(const std::string& text, ToolRule& rule) {
  const size_t end = text.find_first_of(":{");
  const std::string key = trimmed(std::string_view(text).substr(0, end));
  rule.alias.name = rule.name;
  const size_t dot = key.find('.');
  if (dot != std::string::npos && !find_key(schema(), "", key).key) {  // a member of a mapping
    const FoundKey mapping = find_key(schema(), "", key.substr(0, dot));
    const Rewrite member = member_of(key.substr(dot + 1));
    rule.key = mapping.key;
    rule.alias.rewrite = mapping.alias ? after(member, mapping.alias->rewrite) : member;
    if (!mapping.alias) return;
    for (const AlsoStates& also : mapping.alias->also)
      rule.alias.also.push_back({also.key, after(member, also.rewrite)});
    return;
  }
  rule.key = &key_spec(key);
  if (end == std::string::npos) return;
  if (text[end] == ':') {
    rule.alias.rewrite = when_true(trimmed(std::string_view(text).substr(end + 1)));
    return;
  }
  std::map<std::string, std::string> words;
  const ConfigNode table = parse_config_text(text.substr(end), rule.name);
  for (const auto& [word, meaning] : table.members) words[word] = meaning.text;
  rule.alias.rewrite = mapped(std::move(words));
}

ToolRule read_rule(const std::string& line) {
  const size_t space = line.find(' ');
  const size_t mark = line.find_first_not_of(' ', space);
  HONE_ASSERT(mark != std::string::npos && kMarks.find(line[mark]) != std::string_view::npos, line);
  ToolRule rule;
  rule.name = line.substr(0, space);
  if (const size_t bracket = rule.name.find('('); bracket != std::string::npos) {
    rule.neutral = rule.name.substr(bracket + 1, rule.name.size() - bracket - 2);
    rule.name.resize(bracket);
  }
  static constexpr ToolRule::Kind kKinds[] = {ToolRule::Kind::kMeans,    ToolRule::Kind::kFile,
                                              ToolRule::Kind::kNoEffect, ToolRule::Kind::kMissing,
                                              ToolRule::Kind::kLook,     ToolRule::Kind::kRefused};
  rule.kind = kKinds[kMarks.find(line[mark])];
  const std::string rest = trimmed(std::string_view(line).substr(mark + 1));
  if (rule.kind == ToolRule::Kind::kMeans) {
    read_meaning(rest, rule);
  } else if (rule.kind == ToolRule::Kind::kFile) {
    rule.tool = rest;
  } else {
    rule.why = rest;
  }
  return rule;
}

/// Adds the rules of a line. Names separated by commas share a meaning: "a, b ~ why".
void add_rules(const std::string& line, std::vector<ToolRule>& rules) {
  // A mark is between spaces; names have spaces only after commas.
  size_t mark = 0;
  while ((mark = line.find(' ', mark)) != std::string::npos) {
    if (line[mark - 1] != ',' && kMarks.find(line[mark + 1]) != std::string_view::npos && line[mark + 2] == ' ') break;
    ++mark;
  }
  HONE_ASSERT(mark != std::string::npos, line);
  std::stringstream stream(line.substr(0, mark));
  for (std::string name; std::getline(stream, name, ',');) {
    rules.push_back(read_rule(trimmed(name) + line.substr(mark)));
  }
}

Tool read_tool(const ToolText& text) {
  Tool tool;
  tool.name = text.name;
  tool.title = text.title;
  tool.base = text.base;
  tool.programs = text.programs;
  tool.marks = text.marks;
  std::stringstream stream(text.rules);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line[0] != '#') add_rules(line, tool.rules);
  }
  tool.defaults = parse_config_text(text.defaults, tool.name);
  tool.lora_defaults = parse_config_text(text.lora_defaults, tool.name);
  tool.note = text.note;
  return tool;
}

const ToolRule* own_rule(const Tool& tool, std::string_view path) {
  const ToolRule* open = nullptr;
  for (const ToolRule& rule : tool.rules) {
    if (rule.name == path) return &rule;
    if (!open && rule.matches(path)) open = &rule;
  }
  return open;
}

}  // namespace

bool ToolRule::matches(std::string_view path) const {
  if (!name.ends_with('*')) return path == name;
  return path.starts_with(std::string_view(name).substr(0, name.size() - 1));
}

const ConfigNode* find_stated(const ConfigNode& root, std::string_view name) {
  for (const auto& [raw, value] : root.members) {
    if (config_name(raw) == name && value.kind != ConfigNode::Kind::kNull) return &value;
  }
  return nullptr;
}

bool is_on(const ConfigNode& root, std::string_view name) {
  const ConfigNode* value = find_stated(root, name);
  bool on = false;
  return value && value->kind == ConfigNode::Kind::kScalar && parse_bool(value->text, on) && on;
}

const std::vector<Tool>& tools() {
  static const std::vector<Tool> all = [] {
    std::vector<Tool> list;
    for (const ToolText& text :
         {axolotl_text(), llama_factory_text(), llama_factory_v1_text(), trl_text(), unsloth_text(),
          transformers_text(), swift_text(), qwen3_sft_text(), kt_text(), node_guide_text(), mixtral_guide_text(),
          fms_text(), deepspeed_text(), fsdp_text(), accelerate_text()}) {
      list.push_back(read_tool(text));
    }
    return list;
  }();
  return all;
}

const Tool* find_tool(std::string_view name) {
  const auto found = std::find_if(tools().begin(), tools().end(), [&](const Tool& tool) { return tool.name == name; });
  return found == tools().end() ? nullptr : &*found;
}

const ToolRule* find_rule(const Tool& tool, std::string_view path) {
  const ToolRule* rule = own_rule(tool, path);
  return rule || tool.base.empty() ? rule : find_rule(*find_tool(tool.base), path);
}

bool has_member_rules(const Tool& tool, std::string_view path) {
  const std::string prefix = std::string(path) + ".";
  const bool own = std::any_of(tool.rules.begin(), tool.rules.end(),
                               [&](const ToolRule& rule) { return rule.name.starts_with(prefix); });
  return own || (!tool.base.empty() && has_member_rules(*find_tool(tool.base), path));
}

namespace {

/// The marks of `tool` in `root`. A mark of one tool has a larger weight than a mark of several, and one of two words
/// ("training.moe", a member) than one of one.
struct Score {
  double weight = 0;
  std::vector<std::string> by;
};

size_t tools_with(const std::string& mark) {
  return static_cast<size_t>(std::count_if(tools().begin(), tools().end(), [&](const Tool& tool) {
    return std::find(tool.marks.begin(), tool.marks.end(), mark) != tool.marks.end();
  }));
}

Score score_of(const Tool& tool, const ConfigNode& root) {
  Score score;
  const auto add = [&](const std::string& name, const std::string& written, double words) {
    if (std::find(tool.marks.begin(), tool.marks.end(), name) == tool.marks.end()) return;
    score.weight += words / static_cast<double>(tools_with(name));
    score.by.push_back(written);
  };
  for (const auto& [raw, value] : root.members) {
    add(config_name(raw), raw, 1);
    for (const auto& member : value.members) {
      add(config_name(raw) + "." + config_name(member.name), raw + "." + member.name, 2);
    }
  }
  return score;
}

}  // namespace

std::string tool_names() {
  std::string text;
  for (const Tool& tool : tools()) text += (text.empty() ? "" : ", ") + tool.name;
  return text;
}

bool is_key_of_a_tool(std::string_view name) {
  return std::any_of(tools().begin(), tools().end(), [&](const Tool& tool) {
    if (std::find(tool.marks.begin(), tool.marks.end(), name) != tool.marks.end()) return true;
    return std::any_of(tool.rules.begin(), tool.rules.end(), [&](const ToolRule& rule) {
      return rule.name != "*" && (rule.matches(name) || rule.name.starts_with(std::string(name) + "."));
    });
  });
}

DetectedTool detect_tool(const ConfigNode& root, const std::string& program, const std::string& where) {
  for (const Tool& tool : tools()) {
    const bool known = std::find(tool.programs.begin(), tool.programs.end(), program) != tool.programs.end();
    // LLaMA-Factory's command with kt_ keys is KTransformers'.
    if (known && !program.empty() && !(tool.name == "llama-factory" && score_of(*find_tool("kt"), root).weight > 0)) {
      return {&tool, {program}};
    }
  }
  DetectedTool best;
  double weight = 0, second = 0;
  for (const Tool& tool : tools()) {
    Score score = score_of(tool, root);
    if (tool.name == "transformers") score.weight *= 0.5;  // all other tools have its keys, too
    // KTransformers' files also have LLaMA-Factory's keys; accelerate's may have its settings.
    if (tool.name == "kt" && score.weight > 0 && !root.find("distributed_type")) score.weight += 100;
    if (score.weight > weight) {
      second = weight;
      weight = score.weight;
      best = {&tool, std::move(score.by)};
    } else {
      second = std::max(second, score.weight);
    }
  }
  if (!best.tool) {
    throw UserError("no tool is known by these keys", where, fmt::format("say which: --from {}", tool_names()));
  }
  if (second == weight) {
    throw UserError("these keys are those of several tools", where, fmt::format("say which: --from {}", tool_names()));
  }
  return best;
}

}  // namespace hone
