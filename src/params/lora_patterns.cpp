#include "params/lora_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "params/expert_parts.h"
#include "params/name_expression.h"
#include "params/pattern.h"

namespace hone {

namespace {

constexpr size_t kMostPatterns = 100'000;

bool in_group(const std::string& word, const Parameter& p) {
  const ParameterKind kind = p.spec().kind;
  if (word == "all-experts") return is_experts(p);
  if (kind == ParameterKind::kAttention) return true;
  return word == "all-linear" && (kind == ParameterKind::kMlp || kind == ParameterKind::kAttentionGate);
}

std::string without_mark(const std::string& pattern) {
  return pattern.starts_with("re:") ? pattern.substr(3) : pattern;
}

}  // namespace

struct LoraPatterns::Entry {
  std::string pattern;
  double value = 0;
  std::optional<NameExpression> expression;  // none of a word
  bool used = false;

  bool matches(const std::vector<std::string>& names) const {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return expression->matches(name); });
  }
};

AdapterNames adapter_names(const Parameter& adapted, std::optional<int64_t> part_begin) {
  AdapterNames names;
  names.adapted = &adapted;
  for (const std::string& name : adapted.spec().all_names()) {
    // Files may hold the weight in parts, which have names of their own.
    const bool part_of_it = is_experts(adapted) && has_expert_files(adapted) && name != adapted.name();
    if (!part_of_it) names.whole.emplace_back(without_weight(name));
    // PEFT adapts routers as parameters, whose names have the end.
    if (adapted.spec().kind == ParameterKind::kRouter) names.whole.push_back(name);
  }
  if (!part_begin) return names;
  const int64_t experts = adapted.shape()[0], per_expert = adapted.shape()[1] * adapted.shape()[2];
  names.experts.resize(static_cast<size_t>(experts));
  for (const FileTensor& tensor : separate_experts(adapted)) {
    if (tensor.offset % per_expert != *part_begin * adapted.shape()[2]) continue;
    const int64_t e = tensor.offset / per_expert;
    for (const ExpertPart& part : parts_of(adapted)) {
      if (part.out_begin != *part_begin) continue;
      names.experts[static_cast<size_t>(e)] = {std::string(without_weight(tensor.name)),
                                               fmt::format("{}.{}.{}", experts_module(adapted), e, part.name)};
    }
  }
  return names;
}

LoraPatterns::LoraPatterns(const std::vector<LoraPattern>& patterns, std::string key) : key_(std::move(key)) {
  static const std::set<std::string> words = {"attention", "all-linear", "all-experts"};
  if (patterns.size() > kMostPatterns) {
    throw UserError(fmt::format("{} patterns, {} are allowed", patterns.size(), kMostPatterns), key_,
                    "write one pattern for many modules");
  }
  const auto budget = std::make_shared<MatchBudget>();
  entries_.reserve(patterns.size());
  for (const LoraPattern& pattern : patterns) {
    Entry& entry = entries_.emplace_back(Entry{pattern.pattern, pattern.value, {}, false});
    if (words.contains(pattern.pattern)) continue;
    entry.expression.emplace(without_mark(pattern.pattern), NameExpression::Must::kMatchTheEnd, key_, budget);
  }
}

LoraPatterns::~LoraPatterns() = default;

bool LoraPatterns::matches(const Entry& entry, const AdapterNames& names) const {
  if (!entry.expression) return in_group(entry.pattern, *names.adapted);
  if (entry.matches(names.whole)) return true;
  const auto matched = std::count_if(names.experts.begin(), names.experts.end(),
                                     [&](const auto& expert) { return entry.matches(expert); });
  if (matched == 0) return false;
  if (matched == static_cast<int64_t>(names.experts.size())) return true;
  throw UserError(fmt::format("'{}' matches {} of the {} experts of '{}'", entry.pattern, matched, names.experts.size(),
                              names.adapted->name()),
                  key_, "all experts of a layer have one rank and one alpha: match all of them");
}

std::optional<double> LoraPatterns::find(const AdapterNames& names) {
  for (const auto* list : {&names.whole, names.experts.empty() ? nullptr : &names.experts.front()}) {
    if (!list) continue;
    for (const std::string& name : *list) leaves_.push_back(name.substr(name.rfind('.') + 1));
  }
  std::optional<double> value;
  for (Entry& entry : entries_) {
    if (!matches(entry, names)) continue;
    entry.used = true;  // also where an earlier one has decided
    if (!value) value = entry.value;
  }
  return value;
}

void LoraPatterns::require_all_used() const {
  for (const Entry& entry : entries_) {
    if (entry.used) continue;
    std::set<std::string> known(leaves_.begin(), leaves_.end());
    known.insert({"attention", "all-linear", "all-experts"});
    throw UserError(
        fmt::format("'{}' matches no module that has an adapter.{}", entry.pattern, did_you_mean(entry.pattern, known)),
        key_,
        "use the end of a module's name, a regular expression, attention, all-linear or all-experts; "
        "what has adapters is set by lora_target_modules");
  }
}

}  // namespace hone
