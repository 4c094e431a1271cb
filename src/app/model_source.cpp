#include "app/model_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/bench/bench_model.h"
#include "app/bench/bench_shapes.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "data/formats/row_columns.h"
#include "params/expert_parts.h"
#include "session/model_path.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

bool has_weights(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return true;
  }
  return false;
}

/// The last part of a path or id, in lower case.
std::string short_name(const std::string& name) { return lower_case(name.substr(name.rfind('/') + 1)); }

}  // namespace

ModelSource find_model(const std::string& name, bool may_download) {
  const fs::path path(name);
  if (fs::is_regular_file(path))
    return {HfConfig::read_file(path), path.parent_path().empty() ? "." : path.parent_path()};
  // A shape that is known needs no download.
  const bool cached = is_hub_name(name) && is_cached_model(name, ModelParts::kDescriptions);
  for (const auto& [shape, config] : bench_shapes()) {
    if (cached || fs::is_directory(path)) break;
    if (shape == short_name(name)) return {HfConfig(Json::parse(config), shape), {}, false, shape};
  }
  if (!may_download && !cached && is_hub_name(name)) throw UserError("the model is not here", name);
  try {
    const fs::path directory = resolve_model_path(name, ModelParts::kDescriptions);
    // An index of weights comes with the descriptions.
    const bool weights = is_hub_name(name) ? is_cached_model(name, ModelParts::kAll) : has_weights(directory);
    return {HfConfig::read(directory), directory, weights};
  } catch (const UserError& error) {
    if (fs::is_directory(path)) throw;
    const std::string near = did_you_mean(short_name(name), bench_model_names());
    if (near.empty()) throw;
    throw UserError(error.message(), error.where(),
                    fmt::format("{}; of the names that hone bench step knows:{}", error.fix(), near));
  }
}

std::unique_ptr<LoadedModel> planned_model(const ModelSource& source, DType dtype, const WeightFormat& experts,
                                           int64_t vocab_rows) {
  if (source.has_weights) return std::make_unique<LoadedModel>(source.directory, dtype, experts, vocab_rows);
  return std::make_unique<LoadedModel>(source.config, source.directory, dtype, experts, vocab_rows);
}

std::string what_is_missing(const ModelSource& source) {
  if (source.has_weights) return {};
  if (!source.known_as.empty()) return fmt::format("the shape known as '{}'; its files are not here", source.known_as);
  return "no weights beside config.json";
}

std::vector<GroupCount> count_groups(const ParameterStore& store, const MoeConfig& moe) {
  std::vector<GroupCount> groups;
  for (const Parameter& parameter : store.all()) {
    const ParameterKind kind = parameter.spec().kind;
    if (kind == ParameterKind::kLora) continue;
    const std::string name(group_of(kind));
    auto group = std::find_if(groups.begin(), groups.end(), [&](const GroupCount& g) { return g.group == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), GroupCount{.group = name});
    const int64_t n = parameter.shape().numel();
    ++group->tensors;
    group->parameters += n;
    group->active += is_experts(parameter) ? n / moe.num_experts * moe.num_experts_per_tok : n;
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
    if (parameter.spec().kind == ParameterKind::kLora) continue;
    const NamePattern pattern{glob_of(parameter.name()), std::string(group_of(parameter.spec().kind)),
                              parameter.shape().to_string()};
    const auto same = std::find_if(patterns.begin(), patterns.end(), [&](const NamePattern& p) {
      return p.glob == pattern.glob && p.shape == pattern.shape;
    });
    ++(same == patterns.end() ? *patterns.insert(patterns.end(), pattern) : *same).tensors;
  }
  return patterns;
}

}  // namespace hone
