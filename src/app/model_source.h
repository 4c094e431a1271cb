// Where a model comes from that is planned or looked at: its folder, its config.json alone, or a name.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "models/hf_config.h"
#include "session/loaded_model.h"

namespace hone {

struct ModelSource {
  HfConfig config;
  std::filesystem::path directory;  ///< that config.json stands in; empty: a shape that is known by name
  bool has_weights = false;
  std::string known_as = {};  ///< the name of that shape
};

/// The model of a folder (with weights or not), of a config.json, of a Hugging Face id in the local cache, or of a name
/// that `hone bench step` knows; of an id that is not in the cache its last part is such a name. UserError if it is
/// none of them.
ModelSource find_model(const std::string& name);

/// Its decoder and parameters: with the headers of the files where they are there, else from config.json alone.
std::unique_ptr<LoadedModel> planned_model(const ModelSource& source, DType dtype,
                                           const WeightFormat& experts = dense_format());

/// "shape known as 'qwen3-30b-a3b'; its files are not here", or "no weights beside config.json"; empty if all is there.
std::string what_is_missing(const ModelSource& source);

}  // namespace hone
