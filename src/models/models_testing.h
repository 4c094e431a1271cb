// Reading configurations in tests of architectures.
#pragma once

#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "models/registry.h"

namespace hone::testing {

inline DecoderConfig read(const Json& json) { return read_decoder_config(HfConfig(json, "config.json")); }

/// The message with which a configuration is refused; "" if it is read.
inline std::string refusal(const Json& json) {
  try {
    read(json);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// The window of each layer; 0: none.
inline std::vector<int64_t> windows(const DecoderConfig& config) {
  std::vector<int64_t> result;
  for (const LayerConfig& layer : config.layers) result.push_back(layer.sliding_window);
  return result;
}

/// Which layers have experts.
inline std::vector<bool> sparse(const DecoderConfig& config) {
  std::vector<bool> result;
  for (const LayerConfig& layer : config.layers) result.push_back(layer.moe);
  return result;
}

}  // namespace hone::testing
