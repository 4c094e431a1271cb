#include "app/model_summary.h"

#include <algorithm>

namespace hone {

std::vector<GroupCount> count_groups(const ParameterStore& store, const MoeConfig& moe) {
  std::vector<GroupCount> groups;
  for (const Parameter& parameter : store.all()) {
    const ParameterKind kind = parameter.kind();
    if (kind == ParameterKind::kLora) continue;
    const std::string name(group_of(kind));
    auto group = std::find_if(groups.begin(), groups.end(), [&](const GroupCount& g) { return g.group == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), GroupCount{.group = name});
    const bool expert = kind == ParameterKind::kExpertsGateUp || kind == ParameterKind::kExpertsDown;
    const int64_t n = parameter.shape().numel();
    ++group->tensors;
    group->parameters += n;
    group->active += expert ? n / moe.num_experts * moe.num_experts_per_tok : n;
  }
  return groups;
}

GroupCount total_of(const std::vector<GroupCount>& groups) {
  GroupCount total{.group = "total"};
  for (const GroupCount& group : groups) {
    total.tensors += group.tensors;
    total.parameters += group.parameters;
    total.active += group.active;
  }
  return total;
}

std::string glob_of(const std::string& name) {
  std::string glob;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    glob += (begin > 0 ? "." : "") + (number ? "*" : part);
    begin = end + 1;
  }
  return glob;
}

std::vector<NamePattern> name_patterns(const ParameterStore& store) {
  std::vector<NamePattern> patterns;
  for (const Parameter& parameter : store.all()) {
    if (parameter.kind() == ParameterKind::kLora) continue;
    const NamePattern pattern{glob_of(parameter.name()), std::string(group_of(parameter.kind())),
                              parameter.shape().to_string()};
    const auto same = std::find_if(patterns.begin(), patterns.end(), [&](const NamePattern& p) {
      return p.glob == pattern.glob && p.shape == pattern.shape;
    });
    ++(same == patterns.end() ? *patterns.insert(patterns.end(), pattern) : *same).tensors;
  }
  return patterns;
}

}  // namespace hone
