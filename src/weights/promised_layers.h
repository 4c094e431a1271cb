// Layers that predict further tokens (multi-token prediction): config.json says how many there are, and files may lack
// them or have others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"
#include "weights/checkpoint.h"

namespace hone {

struct LayerPromise {
  std::string field;  ///< its name in config.json
  int64_t promised = 0, found = 0;
};

/// Whether config.json promises any.
bool promises_layers(const Json& config);

/// The fields that promise more such layers than the checkpoint has.
std::vector<LayerPromise> broken_promises(const Json& config, const Checkpoint& checkpoint);

/// config.json with the numbers of layers that are there. Programs that predict with these layers cannot load a model
/// that lacks them.
Json with_true_promises(Json config, const Checkpoint& checkpoint);

}  // namespace hone
