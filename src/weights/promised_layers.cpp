#include "weights/promised_layers.h"

#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

namespace {

constexpr const char* kPromises[] = {"num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"};
constexpr const char* kTextModel = "text_config";  // the part of a larger model's config.json

int64_t number_in(const Json& object, const char* key) {
  return object.contains(key) ? whole_number<int64_t>(object[key]).value_or(0) : 0;
}

constexpr std::string_view kLayers = "layers.", kBlocks = "mtp_block.";

/// The number behind "layers." or "mtp_block." in a tensor's name; -1 without.
int64_t layer_number(std::string_view name) {
  for (const std::string_view before : {kLayers, kBlocks}) {
    const size_t at = name.find(before);
    if (at == std::string_view::npos) continue;
    int64_t layer = -1;
    std::from_chars(name.data() + at + before.size(), name.data() + name.size(), layer);
    return layer;
  }
  return -1;
}

/// Layers after the decoder's, and those of a module of their own ("mtp.layers.0.", "model.mtp_block.0.").
int64_t layers_found(const Checkpoint& checkpoint, int64_t num_hidden_layers) {
  std::set<std::pair<bool, int64_t>> found;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const bool own =
        name.starts_with("mtp.") || name.find(".mtp.") != std::string::npos || name.find(kBlocks) != std::string::npos;
    const int64_t layer = layer_number(name);
    if (own ? layer >= 0 : layer >= num_hidden_layers && num_hidden_layers > 0) found.emplace(own, layer);
  }
  return static_cast<int64_t>(found.size());
}

/// Calls use(object, field, promised, prefix of the field) for each promise, in config.json or its text model.
template <class Object, class Use>
void for_promises(Object& config, const Use& use) {
  const auto look = [&](Object& object, const std::string& prefix) {
    if (!object.is_object()) return;
    for (const char* key : kPromises) {
      if (const int64_t promised = number_in(object, key); promised > 0) use(object, key, promised, prefix);
    }
  };
  look(config, "");
  if (config.is_object() && config.contains(kTextModel)) look(config[kTextModel], std::string(kTextModel) + ".");
}

/// Calls use(object, field, promise) for each that is not kept.
template <class Object, class Use>
void for_broken(Object& config, const Checkpoint& checkpoint, const Use& use) {
  for_promises(config, [&](Object& object, const char* key, int64_t promised, const std::string& prefix) {
    const int64_t found = layers_found(checkpoint, number_in(object, "num_hidden_layers"));
    if (found < promised) use(object, key, LayerPromise{prefix + key, promised, found});
  });
}

}  // namespace

bool promises_layers(const Json& config) {
  bool any = false;
  for_promises(config, [&](const Json&, const char*, int64_t, const std::string&) { any = true; });
  return any;
}

std::vector<LayerPromise> broken_promises(const Json& config, const Checkpoint& checkpoint) {
  std::vector<LayerPromise> broken;
  for_broken(config, checkpoint,
             [&](const Json&, const char*, const LayerPromise& promise) { broken.push_back(promise); });
  return broken;
}

Json with_true_promises(Json config, const Checkpoint& checkpoint) {
  for_broken(config, checkpoint,
             [](Json& object, const char* key, const LayerPromise& promise) { object[key] = promise.found; });
  return config;
}

}  // namespace hone
