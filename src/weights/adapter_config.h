// adapter_config.json of the adapters of a store.
#pragma once

#include <functional>

#include "core/json.h"
#include "params/lora.h"
#include "weights/adapter.h"

namespace hone {

/// Rank and alpha of one adapter in a file.
struct AdapterScale {
  int64_t rank = 0;
  double alpha = 0;

  bool operator==(const AdapterScale&) const = default;
};

struct AdapterConfigOptions {
  const LoraOptions& lora;
  std::string base_model;  ///< base_model_name_or_path
  AdapterLayout layout = AdapterLayout::kSplit;
  bool doubled = false;  ///< every rank of the file is twice that of lora.r
  std::function<AdapterScale(const Parameter& adapted, const AttachedAdapter& attached)> scale;
};

/// As PEFT writes it: r and lora_alpha of the run, and in rank_pattern and alpha_pattern what differs from them.
/// target_modules and modules_to_save are last parts of names where every such module of the model (or, with
/// layers_to_transform, of some layers) is meant, else whole names.
Json adapter_config(const ParameterStore& store, const AdapterConfigOptions& options);

}  // namespace hone
