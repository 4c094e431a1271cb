#include "app/bench/bench_model.h"

#include <fmt/format.h>

#include <filesystem>

#include "app/bench/bench_shapes.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

namespace {

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
  Json json = config.json();
  const bool nested = json.contains("text_config");
  const int64_t all = (nested ? config.nested("text_config") : config).integer("num_hidden_layers");
  if (layers < 0 || layers > all) {
    throw UserError(fmt::format("{} of {} layers cannot be run", layers, all), "--layers",
                    fmt::format("use 1 to {}, or 0 for all", all));
  }
  (nested ? json["text_config"] : json)["num_hidden_layers"] = layers;
  return HfConfig(std::move(json), config.file());
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (name_of(dtype) == name) return dtype;
  }
  throw UserError(fmt::format("'{}' is not a dtype to train in", name), "--dtype", "use bfloat16 or float32");
}

}  // namespace hone
