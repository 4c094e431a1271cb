// The kinds of adapters: one row for each.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "core/json_fwd.h"
#include "params/adapter.h"

namespace hone {

struct AdapterKind {
  std::string_view name;                ///< in messages: "DoRA"
  std::string_view key = {};            ///< the configuration key that chooses it; "": unless another one is chosen
  bool LoraOptions::*chosen = nullptr;  ///< whether that is so
  bool adapts_experts = true;           ///< of routed experts' weights, whose op (ops/moe_experts) adds factors alone
  bool adapts_head = true;              ///< as does the head's (ops/linear_cross_entropy)
  bool for_servers = true;              ///< the layouts kt and sglang have a place for its tensors
  std::string_view reads_whole_rows = {};  ///< what it does with rows of stored weights, which ZeRO-3 shards; or ""
  std::unique_ptr<AttachedAdapter> (*attach)(const AdapterSite& site) = nullptr;
  void (*describe)(const LoraOptions& options, Json& config) = nullptr;  ///< its keys of adapter_config.json
  void (*read)(const Json& config, LoraOptions& options) = nullptr;      ///< sets what those say
};

/// The table.
std::span<const AdapterKind> adapter_kinds();

/// The kind that options choose.
const AdapterKind& adapter_kind(const LoraOptions& options);

}  // namespace hone
