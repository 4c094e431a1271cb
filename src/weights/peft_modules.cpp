#include "weights/peft_modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "params/expert_parts.h"
#include "params/pattern.h"

namespace hone {

namespace {

constexpr const char* kKey = "exclude_modules";

std::string without_weight(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

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

/// A glob, in whose brackets ! stands for ^.
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

/// The modules that a word names.
std::string expression_of_group(const ParameterStore& store, const std::string& word) {
  std::vector<std::string> names;
  for (const Parameter& p : store.all()) {
    const ParameterKind kind = p.kind();
    if (word == "all-experts") {
      if (kind == ParameterKind::kExpertsDown) names.push_back(escaped(experts_module(p)) + "(\\..*)?");
    } else if (kind == ParameterKind::kAttention ||
               (word == "all-linear" && (kind == ParameterKind::kMlp || kind == ParameterKind::kAttentionGate))) {
      names.push_back(escaped(without_weight(p.name())));
    }
  }
  return fmt::format("{}", fmt::join(names, "|"));
}

/// One that matches whole names.
std::string expression_of(const ParameterStore& store, const std::string& pattern) {
  if (is_group(pattern)) return expression_of_group(store, pattern);
  if (const auto whole = whole_name_expression_of(pattern)) return *whole;
  if (pattern.starts_with("re:")) return fmt::format(".*(?:{}).*", pattern.substr(3));
  const std::string name = without_weight(pattern);
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

}  // namespace hone
