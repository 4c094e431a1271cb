#include "app/bench/bench_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "app/bench/bench_shapes.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "models/registry.h"

namespace hone {

namespace {

/// Fields that list every layer.
constexpr const char* kLists[] = {"layer_types", "layers_block_type", "mlp_layer_types", "hybrid_override_pattern"};

HfConfig named_or_read(const std::string& name) {
  for (const auto& [shape, text] : bench_shapes()) {
    if (shape == name) return HfConfig(Json::parse(text), shape);
  }
  if (std::filesystem::is_directory(name)) return HfConfig::read(name);
  if (std::filesystem::is_regular_file(name)) return HfConfig::read_file(name);
  const std::vector<std::string> names = bench_model_names();
  throw UserError(fmt::format("'{}' is neither a model folder, nor a config.json, nor a shape that is known.{}", name,
                              did_you_mean(name, names)),
                  "--model",
                  fmt::format("use one of {}, or a config.json or the folder of one", fmt::join(names, ", ")));
}

}  // namespace

std::vector<std::string> bench_model_names() {
  std::vector<std::string> names;
  for (const auto& [shape, text] : bench_shapes()) names.push_back(shape);
  return names;
}

HfConfig bench_model(const std::string& name_or_folder, int64_t layers) {
  const HfConfig config = named_or_read(name_or_folder);
  if (layers == 0) return config;
  const auto all = static_cast<int64_t>(read_decoder_config(config).layers.size());
  if (layers < 0 || layers > all) {
    throw UserError(fmt::format("{} of {} layers cannot be run", layers, all), "--layers",
                    fmt::format("use 1 to {}, or 0 for all", all));
  }
  Json json = config.json();
  Json& text = json.contains("text_config") ? json["text_config"] : json;
  text["num_hidden_layers"] = layers;
  for (const char* list : kLists) {
    if (!text.contains(list)) continue;
    if (text[list].is_string()) {
      text[list] = text[list].get<std::string>().substr(0, static_cast<size_t>(layers));
    } else if (text[list].is_array()) {
      text[list].get_ref<Json::array_t&>().resize(std::min(text[list].size(), static_cast<size_t>(layers)));
    }
  }
  return HfConfig(std::move(json), config.file());
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (name_of(dtype) == name) return dtype;
  }
  throw UserError(fmt::format("'{}' is not a dtype to train in", name), "--dtype", "use bfloat16 or float32");
}

}  // namespace hone
