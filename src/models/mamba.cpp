#include "models/mamba.h"

#include <fmt/format.h>

#include <limits>

#include "core/text/json.h"
#include "ops/causal_conv/causal_conv.h"
#include "ops/gated_group_norm/gated_group_norm.h"

namespace hone {

namespace {

/// A bound of time_step_limit: transformers 5 writes infinity as an object.
float read_bound(const HfConfig& config, const Json& bound) {
  if (bound.is_object() && bound.size() == 1 && bound.contains("__float__") && bound["__float__"] == "Infinity") {
    return std::numeric_limits<float>::infinity();
  }
  if (!bound.is_number()) config.refuse(fmt::format("time_step_limit: {} is not a number", bound.dump()));
  return bound.get<float>();
}

}  // namespace

int64_t read_mamba_size(const HfConfig& config, const char* key, int64_t fallback) {
  const int64_t value = config.integer_or(key, fallback);
  if (value == 0 || value > (1 << 20)) config.refuse(fmt::format("{}: {} is out of range", key, value));
  return value;
}

void check_mamba(const HfConfig& config, const MambaKeys& keys, const Mamba2Config& mamba) {
  const SsdHeads& heads = mamba.heads;
  if (heads.num_heads % heads.num_groups != 0) {
    config.refuse(fmt::format("{}: {} heads cannot share {} groups", keys.groups, heads.num_heads, heads.num_groups));
  }
  const int64_t group = heads.inner() / heads.num_groups;
  if (group > kMaxGatedGroup) {
    config.refuse(fmt::format("{}: groups of {} are not supported (at most {})", keys.groups, group, kMaxGatedGroup));
  }
  if (heads.head_dim > kMaxSsdHeadDim || heads.state_size > kMaxSsdState || mamba.conv_taps > kMaxConvTaps) {
    config.refuse(fmt::format("{}, {}, {}: {}, {}, {} are not supported (at most {}, {}, {})", keys.head_dim,
                              keys.state_size, keys.conv_taps, heads.head_dim, heads.state_size, mamba.conv_taps,
                              kMaxSsdHeadDim, kMaxSsdState, kMaxConvTaps));
  }
}

std::pair<float, float> read_time_step_limit(const HfConfig& config) {
  constexpr const char* kKey = "time_step_limit";
  if (!config.has(kKey)) return {0.0f, std::numeric_limits<float>::infinity()};
  const Json& limit = config.json().at(kKey);
  if (!limit.is_array() || limit.size() != 2) config.refuse(fmt::format("{} is not a pair of numbers", kKey));
  const std::pair bounds{read_bound(config, limit[0]), read_bound(config, limit[1])};
  if (!(bounds.first >= 0 && bounds.first <= bounds.second)) {
    config.refuse(fmt::format("{}: {} is not two increasing numbers from 0 on", kKey, limit.dump()));
  }
  return bounds;
}

}  // namespace hone
