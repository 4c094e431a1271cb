#include "app/convert_config/detect.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace hone {
namespace {

/// The marks of `tool` that stand in `root`. One that no other tool has says more than one that several have.
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
  for (const auto& [raw, value] : root.members) {
    const std::string name = config_name(raw);
    if (std::find(tool.marks.begin(), tool.marks.end(), name) == tool.marks.end()) continue;
    score.weight += 1.0 / static_cast<double>(tools_with(name));
    score.by.push_back(raw);
  }
  return score;
}

std::string tool_names() {
  std::string text;
  for (const Tool& tool : tools()) text += (text.empty() ? "" : ", ") + tool.name;
  return text;
}

}  // namespace

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
    if (tool.name == "transformers") score.weight *= 0.5;            // every other tool has its keys too
    if (tool.name == "kt" && score.weight > 0) score.weight += 100;  // beside LLaMA-Factory's own keys
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
