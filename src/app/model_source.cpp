#include "app/model_source.h"

#include <fmt/format.h>

#include "app/bench/bench_model.h"
#include "app/bench/bench_shapes.h"
#include "core/error.h"
#include "data/row_columns.h"

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

ModelSource find_model(const std::string& name) {
  const fs::path path(name);
  if (fs::is_regular_file(path))
    return {HfConfig::read_file(path), path.parent_path().empty() ? "." : path.parent_path()};
  try {
    const fs::path directory = resolve_model_path(name);
    return {HfConfig::read(directory), directory, has_weights(directory)};
  } catch (const UserError& error) {
    if (fs::is_directory(path)) throw;
    for (const auto& [shape, config] : bench_shapes()) {
      if (shape == short_name(name)) return {HfConfig(Json::parse(config), shape), {}, false, shape};
    }
    const std::string near = did_you_mean(short_name(name), bench_model_names());
    if (near.empty()) throw;
    throw UserError(error.message(), error.where(),
                    fmt::format("{}; of the names that hone bench step knows:{}", error.fix(), near));
  }
}

std::unique_ptr<LoadedModel> planned_model(const ModelSource& source, DType dtype, const WeightFormat& experts) {
  if (source.has_weights) return std::make_unique<LoadedModel>(source.directory, dtype, experts);
  return std::make_unique<LoadedModel>(source.config, source.directory, dtype, experts);
}

std::string what_is_missing(const ModelSource& source) {
  if (source.has_weights) return {};
  if (!source.known_as.empty()) return fmt::format("the shape known as '{}'; its files are not here", source.known_as);
  return "no weights beside config.json";
}

}  // namespace hone
