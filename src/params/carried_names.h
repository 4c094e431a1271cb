// Names of tensors outside the decoder, which are not trained and are written back unchanged.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace hone {

struct CarriedNames {
  std::vector<std::string> prefixes = {};  ///< a vision tower, multi-token prediction heads
  /// Prefix of the decoder's layers ("model.layers.") and their number. Later layers, such as those that predict
  /// several tokens, are carried whatever config.json says of them. Empty: none.
  std::string layers = {};
  int64_t num_layers = 0;

  bool contain(std::string_view name) const {
    return later_layer(name) >= 0 || std::any_of(prefixes.begin(), prefixes.end(),
                                                 [&](const std::string& prefix) { return name.starts_with(prefix); });
  }
  /// The layer of a tensor of a later layer, else -1.
  int64_t later_layer(std::string_view name) const {
    if (layers.empty() || !name.starts_with(layers)) return -1;
    name.remove_prefix(layers.size());
    int64_t layer = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    const bool number = error == std::errc() && end != name.data() + name.size() && *end == '.';
    return number && layer >= num_layers ? layer : -1;
  }
  bool operator==(const CarriedNames&) const = default;
};

}  // namespace hone
